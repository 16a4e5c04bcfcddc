"""An engine that recites one text, and passes only when a test lets it: for rounds whose outcome is known."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import Exactness, ModelInfo
from forerun.engine.interface import Segment


class Recital:
    """Says `text[i]` at position i whatever it is fed. A stand-in for the model alone; all else is real."""

    def __init__(self, text: Sequence[int], *, vocab_size: int = 64, capacity: int = 4096) -> None:
        self.text = list(text)
        self.model = ModelInfo("recital", "", "f" * 64, vocab_size, 1024, "recital", Exactness.BITWISE, ())
        self.capacity = capacity
        self.segments: list[Segment] = []
        self.entered = threading.Semaphore(0)
        self._leave = threading.Semaphore(0)
        self._free = False

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        del session_id, token_ids
        return 0

    def close(self, session_id: str) -> None:
        del session_id

    def let_pass(self, count: int = 1) -> None:
        for _ in range(count):
            self._leave.release()

    def run_free(self) -> None:
        self._free = True
        self.let_pass()

    def forward(self, segments: Sequence[Segment]) -> list[NDArray[np.float32]]:
        self.entered.release()
        if not self._free:
            self._leave.acquire()
        self.segments.extend(segments)
        return [self._logits(segment) for segment in segments]

    def _logits(self, segment: Segment) -> NDArray[np.float32]:
        logits = np.zeros((segment.num_logits, self.model.vocab_size), np.float32)
        first = segment.start + len(segment.token_ids) - segment.num_logits + 1
        for row in range(segment.num_logits):
            logits[row, self.text[first + row]] = 10.0
        return logits
