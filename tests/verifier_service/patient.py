"""Pacing of tests in which drafts must be checked, however busy the machine is."""

from __future__ import annotations

from collections.abc import Sequence

from forerun.core.pacing import Outlook, Pacing
from forerun.core.pass_cost import PassCost


class FreeRows(PassCost):
    """Of a machine on which rows cost nothing, so that every draft that is there is checked, and asked for."""

    known = True

    def __init__(self) -> None:
        super().__init__()
        self.begin({2: 1.0, 512: 1.0})

    def observe(self, num_rows: int, pass_us: float) -> None:
        pass

    def us(self, num_rows: int) -> float:
        return 20_000.0


class Patient(Pacing):
    """Waits for every answer that is owed: how many drafts come in time is not the machine's affair."""

    def __init__(self) -> None:
        super().__init__()
        self.cost = FreeRows()

    def wait_us(self, outlooks: Sequence[Outlook], other_rows: int = 0, max_rows: int = 512) -> float:
        return 1_000_000.0
