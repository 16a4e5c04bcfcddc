"""How settled tokens leave: the first at once, then together what was settled while the stream rested."""

from __future__ import annotations

import grpc

from forerun.core.types import FinishReason
from tests.verifier_service.conftest import serving
from tests.verifier_service.recital import Recital

TEXT = list(range(1, 40))
LONG_S = 3600.0  # no test lives to see the end of this rest


async def test_the_first_token_and_the_end_are_not_waited_with() -> None:
    recital = Recital([*TEXT, *[0] * 8])
    async with serving(recital, rest_s=LONG_S) as service:
        call = service.stub.Decode(service.request(TEXT[:2], max_tokens=12))
        assert (await call.read()).HasField("started")
        recital.let_pass()
        (first,) = (await call.read()).settled
        assert list(first.token_ids) == TEXT[2:3]
        recital.run_free()
        rest = (await call.read()).settled
        assert await call.read() is grpc.aio.EOF
    assert [list(one.token_ids) for one in rest] == [[token] for token in TEXT[3:14]]
    assert [one.base for one in rest] == list(range(3, 14))
    assert [one.finish_reason for one in rest] == [FinishReason.NONE] * 10 + [FinishReason.LENGTH]


async def test_an_error_comes_after_what_was_settled_before_it() -> None:
    recital = Recital(TEXT[:8])  # it knows no more: the pass after that fails
    async with serving(recital, rest_s=LONG_S) as service:
        call = service.stub.Decode(service.request(TEXT[:2], max_tokens=12))
        await call.read()
        recital.run_free()
        settled: list[int] = []
        code = None
        try:
            while (message := await call.read()) is not grpc.aio.EOF:
                settled += [token for one in message.settled for token in one.token_ids]
        except grpc.aio.AioRpcError as error:
            code = error.code()
    assert code is grpc.StatusCode.INTERNAL
    assert settled == TEXT[2:8]


async def test_without_a_rest_a_reader_that_keeps_up_gets_each_pass() -> None:
    recital = Recital([*TEXT, *[0] * 8])
    async with serving(recital) as service:
        call = service.stub.Decode(service.request(TEXT[:2], max_tokens=4))
        await call.read()
        for token in TEXT[2:6]:
            recital.let_pass()
            (one,) = (await call.read()).settled
            assert list(one.token_ids) == [token]
        recital.run_free()
