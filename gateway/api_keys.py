"""Optional API keys, the same at both doors."""

from __future__ import annotations

import hmac
from collections.abc import Collection
from pathlib import Path

from forerun.errors import InvalidRequest, Unauthenticated

_SCHEME = "bearer "


class ApiKeys:
    """Who may ask. Without any key everybody may."""

    def __init__(self, keys: Collection[str] = ()) -> None:
        self.keys = tuple(keys)

    @classmethod
    def from_file(cls, path: Path | None) -> ApiKeys:
        """One key a line; blank lines and those that begin with # do not count. None: no keys.

        Raises InvalidRequest for a file that cannot be read or holds no key: it would let everybody in.
        """
        if path is None:
            return cls()
        try:
            lines = [line.strip() for line in path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(
                f"cannot read {path}", reason="BAD_API_KEYS", field="api-keys-file"
            ) from error
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise InvalidRequest(f"{path} holds no key", reason="BAD_API_KEYS", field="api-keys-file")
        return cls(keys)

    def check(self, authorization: str | None) -> None:
        """Return if this Authorization header ("Bearer KEY") is good. Raises Unauthenticated."""
        if not self.keys:
            return
        given = authorization or ""
        key = given[len(_SCHEME) :].strip() if given.lower().startswith(_SCHEME) else ""
        # Every key is compared, in constant time, so that the time tells nothing about them.
        matches = [hmac.compare_digest(key.encode(), known.encode()) for known in self.keys]
        if not any(matches):
            if key:
                raise Unauthenticated("this API key is not known here", reason="API_KEY_WRONG")
            raise Unauthenticated("an API key is needed: Authorization: Bearer KEY", reason="API_KEY_MISSING")
