"""Every error Forerun raises on purpose.

ForerunError
├── InvalidRequest          INVALID_ARGUMENT     400   a field is wrong; `field` names it
├── Unauthenticated         UNAUTHENTICATED      401   no or a wrong API key
├── PermissionRefused       PERMISSION_DENIED    403   wrong attach key, address not on the allow-list
├── NotFound                NOT_FOUND            404   no such session or model
├── OffsetBeyondEnd         OUT_OF_RANGE         400   resume offset past what is committed
├── FailedPrecondition      FAILED_PRECONDITION  409   vocabulary mismatch, old epoch
├── Superseded              ABORTED              409   a higher epoch took the session over
├── AlreadyRunning          ALREADY_EXISTS       409   the conversation is busy; the request id is taken
├── Overloaded              RESOURCE_EXHAUSTED   429   queue or pool full; `retry_after_s`
├── Unavailable             UNAVAILABLE          503   no verifier, Redis down
└── InternalFault           INTERNAL             500   a broken model or a bug, contained in one session

`forerun.wire.status` maps them to gRPC, `gateway.http.errors` to HTTP.
"""

DOMAIN = "forerun"


class ForerunError(Exception):
    """An error with a reason a program can read and a sentence a person can.

    `reason`: UPPER_SNAKE_CASE, stable. `field`: the request field at fault, or "". `metadata`: facts, as strings.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str | None = None,
        field: str = "",
        retry_after_s: float | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason or _snake(type(self).__name__)
        self.field = field
        self.retry_after_s = retry_after_s
        self.metadata = metadata or {}


class InvalidRequest(ForerunError):
    """A field is missing, malformed or outside its range."""


class Unauthenticated(ForerunError):
    """The API key is missing or wrong."""


class PermissionRefused(ForerunError):
    """The caller may not do this."""


class NotFound(ForerunError):
    """The thing named does not exist."""


class OffsetBeyondEnd(ForerunError):
    """The offset lies past the committed tokens."""


class FailedPrecondition(ForerunError):
    """The state of the system does not allow it."""


class Superseded(ForerunError):
    """A higher epoch owns the session now."""


class AlreadyRunning(ForerunError):
    """The session is busy, or the request id belongs to a different request."""


class Overloaded(ForerunError):
    """No room now; try again after `retry_after_s`."""


class Unavailable(ForerunError):
    """A service this one needs cannot be reached."""


class InternalFault(ForerunError):
    """A fault that is not the caller's."""


def _snake(name: str) -> str:
    return "".join("_" + c if c.isupper() else c.upper() for c in name).removeprefix("_")
