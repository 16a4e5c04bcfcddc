"""Drafters that no session can use, said once each."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from forerun.core.types import ModelInfo
from gateway.replica import Replica

# Of a fingerprint, enough to tell two apart by eye.
_SHOWN = 12

Serving = Iterable[tuple[Replica, ModelInfo]]


class Misfits:
    """Warns of a drafter whose vocabulary is that of no target served, once per drafter and target."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str, str, str]] = set()
        self._log = structlog.get_logger("gateway.router")

    def look(self, drafters: Serving, targets: Serving) -> None:
        """Every misfit among what serves now has been warned of. Look-up sources fit every target."""
        models = {(m.name, m.vocab_fingerprint) for _, m in targets}
        known = {"", *(fingerprint for _, fingerprint in models)}
        for drafter, model in drafters:
            if model.vocab_fingerprint not in known:
                for target, fingerprint in sorted(models):
                    self._warn(drafter.address, model.vocab_fingerprint, target, fingerprint)

    def _warn(self, drafter: str, drafters_own: str, target: str, targets_own: str) -> None:
        misfit = (drafter, drafters_own, target, targets_own)
        if misfit in self._told:
            return
        self._told.add(misfit)
        self._log.warning(
            f"drafter {drafter} drafts for another vocabulary than target {target}",
            drafter_vocabulary=drafters_own[:_SHOWN],
            target_vocabulary=targets_own[:_SHOWN],
        )
