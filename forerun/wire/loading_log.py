"""How far a service has come with loading, for its log."""

from __future__ import annotations

import structlog

log = structlog.get_logger()


class LoadingLog:
    """Takes progress as it comes: a step when it begins, and each tenth of it, is a line of the log."""

    def __init__(self) -> None:
        self._last = ("", -1)

    def __call__(self, what: str, share: float) -> None:
        """Of the step `what` this share is done, 0 to 1."""
        here = (what, int(10 * share))
        if here != self._last:
            self._last = here
            log.info("loading", what=what, percent=round(100 * share))
