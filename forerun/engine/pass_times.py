"""What passes of few and of many rows take, measured before the first session."""

from __future__ import annotations

import time

import numpy as np

from forerun.core.pass_cost import KNOTS
from forerun.engine.interface import Engine, Segment

DEAR = 4.0  # no more rows are measured once a pass takes so many times the smallest one
# Another round is begun only before this. The first may also warm up, so there are two at least.
BUDGET_S = 0.5
_SESSION = "pass times"


def pass_times(engine: Engine) -> dict[int, float]:
    """Return microseconds of a pass by its rows, the best of a few interleaved rounds. Leaves no session behind.

    The rows are one short session's and all want logits. Counts beyond the model's context or the pool are left out.
    """
    room = min(engine.model.max_context, engine.capacity)
    text = np.random.default_rng(0).integers(0, engine.model.vocab_size, min(KNOTS[-1], room)).tolist()
    started = time.monotonic()
    engine.open(_SESSION, text[:1])
    try:
        _us(engine, text[:2])  # warm
        best = {}
        for count in (count for count in KNOTS if count <= len(text)):
            best[count] = _us(engine, text[:count])
            if best[count] > DEAR * best[KNOTS[0]]:
                break
        while True:
            best = {count: min(us, _us(engine, text[:count])) for count, us in best.items()}
            if time.monotonic() - started > BUDGET_S:
                return best
    finally:
        engine.close(_SESSION)


def _us(engine: Engine, token_ids: list[int]) -> float:
    started = time.perf_counter()
    engine.forward([Segment(_SESSION, 0, token_ids, len(token_ids))])
    return 1e6 * (time.perf_counter() - started)
