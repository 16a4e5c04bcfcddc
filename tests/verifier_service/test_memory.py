"""Sessions that have ended leave no object and no block behind. Bytes: `benchmarks/memory.py`."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from pathlib import Path

from forerun.engine.load import load_engine
from tests.verifier_service.conftest import Service, greedy_text, serving
from tests.verifier_service.test_decoding import PROMPT, drafted
from tests.verifier_service.test_hard_times import until

AT_ONCE = 16
WARM, MORE = 96, 288  # sessions
OURS = ("forerun.core.", "forerun.engine.interface", "verifier_service.")


async def run_sessions(service: Service, first: int, count: int, text: list[int]) -> None:
    """So many sessions from start to end, every fourth with a drafter, every eighth cancelled in its midst."""

    async def one(number: int) -> None:
        name = f"m{number}"
        if number % 8 == 7:
            call = service.stub.Decode(service.request(PROMPT, session_id=name, max_tokens=400))
            await call.read()
            await call.read()
            call.cancel()
        elif number % 4 == 0:
            await drafted(service, service.request(PROMPT, session_id=name, max_tokens=20), text, (number,))
        else:
            await service.decode(service.request([number % 60, *PROMPT], session_id=name, max_tokens=20))

    for at in range(first, first + count, AT_ONCE):
        await asyncio.gather(*(one(number) for number in range(at, at + AT_ONCE)))
    await until(lambda: not list(service.sessions) and not service.sessions.ended)


def objects() -> Counter[str]:
    """What is alive, by type."""
    gc.collect()
    return Counter(f"{type(o).__module__}.{type(o).__qualname__}" for o in gc.get_objects())


async def kept_since(before: Counter[str]) -> Counter[str]:
    """What is alive beyond `before`; calls that have just ended are given five seconds to be gone."""
    for _ in range(50):
        if (kept := objects() - before).total() < MORE:
            break
        await asyncio.sleep(0.1)
    return kept


async def test_four_hundred_sessions_leave_nothing_alive(tiny_folder: Path) -> None:
    engine = load_engine(str(tiny_folder), dtype="float32", threads=1, pool_bytes=1 << 20)[0]
    text = greedy_text(engine, PROMPT, 20)
    async with serving(engine) as service:
        await run_sessions(service, 0, WARM, text)
        before = objects()
        await run_sessions(service, WARM, MORE, text)
        await until(lambda: not engine.pool.session_ids)
        kept = await kept_since(before)
    assert engine.held == 0
    assert {name: count for name, count in kept.items() if name.startswith(OURS) and count > AT_ONCE} == {}
    assert kept.total() < MORE, kept.most_common(5)  # less than one object a session
