"""The start-up probe of row invariance: whether a row's result depends on what is computed beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forerun.core.types import Exactness
from forerun.engine.cache_folder import arriving_whole, cache_folder
from forerun.engine.interface import Engine, Segment
from forerun.engine.model_config import read_json

ROW_COUNTS = (*range(2, 18), 32, 64, 256)
LONGEST = 288  # positions of the probed text; a pass of 256 rows needs as many behind it
SHORT = 40  # the other KV length
_SELF, _OTHER = "probe:self", "probe:other"

Bits = NDArray[np.uint32]


def probe(engine: Engine) -> Exactness:
    """BITWISE if the same rows gave the same bits however they were computed, else NUMERIC.

    Compares, at two KV lengths, every count of rows in ROW_COUNTS, decoding against prefill, three chunkings, a
    longer neighbour in the pass, and a shared prefix against a fresh one. Leaves no session behind.
    """
    text = _text(engine)
    try:
        return Exactness.BITWISE if all(_agreements(engine, text)) else Exactness.NUMERIC
    finally:
        engine.close(_SELF)
        engine.close(_OTHER)


def probe_once(engine: Engine, threads: int) -> Exactness:
    """`probe`, or what it found before on this machine for equal numerics and as many threads."""
    path = cache_folder() / "probes" / f"{engine.model.numerics}-{threads}.json"
    kept = read_json(path).get("exact")
    if kept in {exact.value for exact in Exactness}:
        return Exactness(kept)
    found = probe(engine)
    with arriving_whole(path) as out:
        out.write_text(json.dumps({"exact": found.value}), encoding="utf-8")
    return found


def _text(engine: Engine) -> list[int]:
    """Random tokens, of a length that leaves room for two such sessions."""
    length = min(LONGEST, engine.model.max_context, engine.capacity // 3)
    return [int(x) for x in np.random.default_rng(0).integers(0, engine.model.vocab_size, length)]


def _agreements(engine: Engine, text: list[int]) -> Iterator[bool]:
    for length in sorted({min(SHORT, len(text)), len(text)}):
        told = text[:length]
        expected = _fresh(engine, told)
        for count in ROW_COUNTS:
            if count < length:
                yield _ends_alike(_rows(engine, _SELF, told, length - count), expected)
        yield _ends_alike(_one_by_one(engine, told, min(4, length - 1)), expected)
        for chunk in (5, 64):
            yield _ends_alike(_chunked(engine, told[-min(length, 4 * chunk) :], told, chunk), expected)
        yield _ends_alike(_beside(engine, text, told), expected)
        yield _ends_alike(_shared(engine, told), expected)


def _fresh(engine: Engine, text: list[int]) -> Bits:
    """Bits of the last logits of a prefill in one pass: at most 17 rows of them."""
    engine.open(_SELF, text[:1])
    return _rows(engine, _SELF, text, 0)


def _rows(engine: Engine, session_id: str, text: list[int], start: int) -> Bits:
    segment = _segment(session_id, text, start)
    return engine.forward([segment])[0].view(np.uint32)


def _segment(session_id: str, text: list[int], start: int) -> Segment:
    rows = text[start:]
    return Segment(session_id, start, rows, min(17, len(rows)))


def _one_by_one(engine: Engine, text: list[int], steps: int) -> Bits:
    found = [_rows(engine, _SELF, text[: at + 1], at) for at in range(len(text) - steps, len(text))]
    return np.concatenate(found)


def _chunked(engine: Engine, tail: list[int], text: list[int], chunk: int) -> Bits:
    start = len(text) - len(tail)
    for at in range(start, len(text), chunk):
        last = _rows(engine, _SELF, text[: at + chunk], at)
    return last


def _beside(engine: Engine, longer: list[int], text: list[int]) -> Bits:
    """Two rows with a longer session's rows before and after them in memory and time."""
    engine.open(_OTHER, longer[::-1])
    at = max(0, len(longer) - 5)
    engine.forward([Segment(_OTHER, 0, longer[::-1][:at], 0)])
    both = [_segment(_OTHER, longer[::-1], at), _segment(_SELF, text, max(0, len(text) - 2))]
    return engine.forward(both)[1].view(np.uint32)


def _shared(engine: Engine, text: list[int]) -> Bits:
    """A second session that finds the first one's prefix in the pool."""
    held = engine.open(_OTHER, text)
    return _rows(engine, _OTHER, text, held)


def _ends_alike(found: Bits, expected: Bits) -> bool:
    count = min(len(found), len(expected))
    return bool(np.array_equal(found[-count:], expected[-count:]))
