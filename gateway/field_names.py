"""Fields at fault, by the names that a door's clients know."""

from __future__ import annotations

from forerun.errors import ForerunError


def renamed(error: ForerunError, name: str) -> ForerunError:
    """The same error about a field called `name`. A message that says its field's name begins with it."""
    message = error.message
    if error.field and message.startswith(f"{error.field} "):
        message = name + message.removeprefix(error.field)
    return type(error)(
        message,
        reason=error.reason,
        field=name,
        retry_after_s=error.retry_after_s,
        metadata=error.metadata,
    )
