"""One thread owns the engine; its faults and its end reach who waits."""

import asyncio
import threading

import pytest

from forerun.engine.executor import EngineThread


async def test_all_calls_run_on_one_thread_that_is_not_the_loops() -> None:
    thread = EngineThread()
    idents = {await thread.run(threading.get_ident) for _ in range(5)}
    thread.close()
    assert len(idents) == 1
    assert threading.get_ident() not in idents


async def test_the_loop_runs_on_while_a_call_computes() -> None:
    thread = EngineThread()
    loop, reached, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def compute() -> str:
        loop.call_soon_threadsafe(reached.set)
        release.wait()
        return "done"

    call = thread.run(compute)
    await reached.wait()
    assert not call.done()
    release.set()
    assert await call == "done"
    thread.close()


async def test_calls_keep_their_order() -> None:
    thread = EngineThread()
    seen: list[int] = []
    await asyncio.gather(*(thread.run(seen.append, i) for i in range(20)))
    thread.close()
    assert seen == list(range(20))


async def test_an_error_arrives_where_the_call_was_made_and_the_thread_lives_on() -> None:
    thread = EngineThread()
    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 // 0)
    assert await thread.run(int, "7", base=8) == 7
    thread.close()


async def test_closing_ends_the_thread() -> None:
    thread = EngineThread()
    owner = await thread.run(threading.current_thread)
    thread.close()
    assert not owner.is_alive()


async def test_a_call_that_is_begun_has_begun_when_the_loop_goes_on() -> None:
    thread = EngineThread()
    entered, may_end = threading.Event(), threading.Event()

    def compute() -> int:
        entered.set()
        may_end.wait()
        return 7

    call = thread.begin(30.0, compute)
    assert entered.is_set()
    assert not call.done()
    may_end.set()
    assert await call == 7
    thread.close()


async def test_a_call_behind_another_does_not_hold_the_loop_up_for_ever() -> None:
    thread = EngineThread()
    may_end, seen = threading.Event(), list[int]()
    first = thread.run(may_end.wait)
    second = thread.begin(0.001, seen.append, 2)
    assert seen == []
    may_end.set()
    await asyncio.gather(first, second)
    assert seen == [2]
    thread.close()


async def test_closing_waits_for_the_call_in_progress_and_cancels_those_behind_it() -> None:
    thread = EngineThread()
    entered, seen = threading.Event(), list[int]()
    loop = asyncio.get_running_loop()

    def compute() -> int:
        entered.set()
        behind_is_dropped.wait()
        return 7

    behind_is_dropped = threading.Event()
    first, behind = thread.begin(30.0, compute), thread.run(seen.append, 1)
    behind.add_done_callback(lambda _: behind_is_dropped.set())
    await loop.run_in_executor(None, thread.close)
    assert (await first, behind.cancelled(), seen) == (7, True, [])
    with pytest.raises(RuntimeError, match="has ended"):
        thread.run(int)
    thread.close()


async def test_a_call_that_is_cancelled_before_it_begins_is_not_made() -> None:
    thread = EngineThread()
    may_end, seen = threading.Event(), list[int]()
    first, second = thread.run(may_end.wait), thread.run(seen.append, 2)
    second.cancel()
    may_end.set()
    await first
    await thread.run(seen.append, 3)
    thread.close()
    assert seen == [3]


async def test_a_call_that_is_cancelled_while_it_computes_ends_unheard() -> None:
    thread = EngineThread()
    may_end, seen = threading.Event(), list[int]()

    def compute() -> None:
        may_end.wait()
        seen.append(1)

    call = thread.begin(30.0, compute)
    call.cancel()
    may_end.set()
    await thread.run(seen.append, 2)
    thread.close()
    assert seen == [1, 2]


def test_an_end_that_nobody_is_left_to_hear_harms_nothing() -> None:
    thread, may_end, seen = EngineThread(), threading.Event(), list[int]()

    async def leave() -> None:
        thread.begin(30.0, lambda: (may_end.wait(), seen.append(1)))

    asyncio.run(leave())
    may_end.set()
    thread.close()
    assert seen == [1]
