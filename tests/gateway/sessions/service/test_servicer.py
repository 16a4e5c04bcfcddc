from __future__ import annotations

import asyncio

import grpc
import httpx
import pytest
from prometheus_client import REGISTRY

from forerun.v1 import gateway_pb2, gateway_pb2_grpc, sampling_pb2
from forerun.wire.channel import open_channel
from forerun.wire.server import Server
from forerun.wire.status import from_rpc_error
from forerun.wire.tls import Tls
from gateway.api_keys import ApiKeys
from gateway.patience import Patience
from gateway.service import Gateway
from gateway.servicer import GATEWAY_SERVICE, GatewayServicer
from tests.gateway.scripted import served

ASK = gateway_pb2.GenerateRequest(prompt="Ring the bell", max_tokens=200)


@pytest.fixture
async def open_door():
    """Serves a gateway over gRPC; returns a stub."""
    opened = []

    async def open_(gateway, keys=()):
        server = Server("127.0.0.1:0", Tls(), insecure=False, services=[GATEWAY_SERVICE])
        servicer = GatewayServicer(gateway, ApiKeys(keys))
        gateway_pb2_grpc.add_GatewayServiceServicer_to_server(servicer, server.grpc)
        address = f"127.0.0.1:{await server.start()}"
        channel = open_channel(address, Tls())
        opened.append((server, channel))
        stub = gateway_pb2_grpc.GatewayServiceStub(channel)
        stub.address = address
        return stub

    yield open_
    for server, channel in opened:
        await channel.close()
        await server.grpc.stop(None)


@pytest.fixture
async def stub(make_gateway, verifier, open_door):
    return await open_door(await make_gateway(verifier))


async def refusal(call) -> tuple[grpc.StatusCode, str, str]:
    """Code, reason and field of the status that a call ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    error = from_rpc_error(caught.value)
    return caught.value.code(), error.reason, error.field


async def test_answer_over_grpc(stub, answer, model):
    events = [event async for event in stub.Generate(ASK)]
    assert [event.WhichOneof("event") for event in events] == [
        "opened",
        *["delta"] * (len(events) - 2),
        "finished",
    ]
    assert tuple(t for e in events for t in e.delta.token_ids) == answer
    text = "".join(e.delta.text + e.finished.text for e in events)
    assert text == "The bell will soon ring: naïve 東京 😀, waking the city."
    assert events[0].opened.mode == sampling_pb2.MODE_GREEDY
    assert not events[0].opened.HasField("seed")
    assert events[0].opened.model.name == model.name
    finished = events[-1].finished
    assert finished.finish_reason == sampling_pb2.FINISH_REASON_STOP
    assert finished.usage.completion_tokens == len(answer)
    assert finished.speculation.passes == -(-len(answer) // 2)
    assert finished.timings.total_ms > 0


async def test_resume_and_get_over_grpc(stub, answer, small):
    events = [event async for event in stub.Generate(ASK)]
    session_id = events[0].opened.session_id
    resumed = [e async for e in stub.Resume(gateway_pb2.ResumeRequest(session_id=session_id, offset=5))]
    assert tuple(t for e in resumed for t in e.delta.token_ids) == answer[5:]
    plain = await stub.GetSession(gateway_pb2.GetSessionRequest(session_id=session_id))
    assert tuple(plain.token_ids[plain.prompt_length :]) == answer
    assert plain.status == gateway_pb2.SESSION_STATUS_FINISHED
    assert plain.text == small.decode(answer)
    assert not plain.passes
    full = await stub.GetSession(gateway_pb2.GetSessionRequest(session_id=session_id, include_passes=True))
    assert tuple(t for settled in full.passes for t in settled.token_ids) == answer
    assert list(full.token_texts) == [small.token_text(t) for t in answer]
    assert all(getattr(settled, "pass").source == "script" for settled in full.passes)
    await stub.DeleteSession(gateway_pb2.DeleteSessionRequest(session_id=session_id))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.GetSession(gateway_pb2.GetSessionRequest(session_id=session_id))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_pass_that_was_committed_in_parts_is_shown_whole(make_gateway, verifier, open_door):
    verifier.chunk = 3
    stub = await open_door(await make_gateway(verifier))
    request = gateway_pb2.GenerateRequest(prompt="Ring", max_tokens=200, stop=["bell wool", "soon rang"])
    events = [event async for event in stub.Generate(request)]
    session_id = events[0].opened.session_id
    full = await stub.GetSession(gateway_pb2.GetSessionRequest(session_id=session_id, include_passes=True))
    for settled in full.passes:
        assert list(settled.token_ids) == list(getattr(settled, "pass").target_token_ids)
        assert len(settled.origins) == len(settled.token_ids)


BAD = [
    (gateway_pb2.GenerateRequest(), "BAD_INPUT", "prompt"),
    (gateway_pb2.GenerateRequest(prompt=""), "EMPTY", "prompt"),
    (gateway_pb2.GenerateRequest(chat=gateway_pb2.Chat()), "EMPTY", "chat.messages"),
    (gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds()), "EMPTY", "token_ids"),
    (
        gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds(ids=[400])),
        "TOKEN_OUT_OF_RANGE",
        "token_ids",
    ),
    (gateway_pb2.GenerateRequest(prompt="x" * 4000), "CONTEXT_EXCEEDED", "prompt"),
    (gateway_pb2.GenerateRequest(prompt="x", max_tokens=0), "OUT_OF_RANGE", "max_tokens"),
    (gateway_pb2.GenerateRequest(prompt="x", max_tokens=512), "CONTEXT_EXCEEDED", "max_tokens"),
    (gateway_pb2.GenerateRequest(prompt="x", request_id="{a}"), "MALFORMED", "request_id"),
    (gateway_pb2.GenerateRequest(prompt="x", session_id="a b"), "MALFORMED", "session_id"),
    (gateway_pb2.GenerateRequest(prompt="x", stop=["a"] * 17), "TOO_MANY", "stop"),
    (gateway_pb2.GenerateRequest(prompt="x", stop=[""]), "OUT_OF_RANGE", "stop"),
    (gateway_pb2.GenerateRequest(prompt="x", acceptance=7), "BAD_ENUM", "acceptance"),
    (
        gateway_pb2.GenerateRequest(prompt="x", sampling=sampling_pb2.Sampling(temperature=-1)),
        "OUT_OF_RANGE",
        "sampling.temperature",
    ),
    (
        gateway_pb2.GenerateRequest(prompt="x", sampling=sampling_pb2.Sampling(temperature=float("nan"))),
        "OUT_OF_RANGE",
        "sampling.temperature",
    ),
    (
        gateway_pb2.GenerateRequest(
            prompt="x",
            seed=3,
            acceptance=sampling_pb2.ACCEPTANCE_REJECTION,
            sampling=sampling_pb2.Sampling(temperature=1),
        ),
        "SEED_NOT_SUPPORTED",
        "seed",
    ),
    (
        gateway_pb2.GenerateRequest(
            chat=gateway_pb2.Chat(messages=[gateway_pb2.ChatMessage(role="god", content="x")])
        ),
        "BAD_ROLE",
        "chat.messages[0].role",
    ),
]


@pytest.mark.parametrize(("request_", "reason", "field"), BAD, ids=[f"{r}-{f}" for _, r, f in BAD])
async def test_a_bad_request_costs_one_clear_answer(stub, verifier, request_, reason, field):
    code = grpc.StatusCode.INVALID_ARGUMENT
    assert await refusal(stub.Generate(request_)) == (code, reason, field)
    assert verifier.requests == []


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (gateway_pb2.GenerateRequest(), "one of prompt, chat and token_ids must be set"),
        (gateway_pb2.GenerateRequest(chat=gateway_pb2.Chat()), "chat.messages must not be empty"),
        (gateway_pb2.GenerateRequest(token_ids=gateway_pb2.TokenIds()), "token_ids must not be empty"),
    ],
)
async def test_a_refusal_speaks_of_the_protos_fields(stub, request_, words):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Generate(request_).read()
    assert caught.value.details() == words


async def test_bad_requests_disturb_no_running_answer(stub, verifier, answer):
    stop = verifier.stop_at(6)
    call = stub.Generate(ASK)
    replies = aiter(call)
    events = [await anext(replies)]
    await stop.reached.wait()
    await asyncio.gather(*(refusal(stub.Generate(request)) for request, _, _ in BAD))
    stop.go.set()
    events += [event async for event in replies]
    assert tuple(t for e in events for t in e.delta.token_ids) == answer
    assert len(verifier.requests) == 1


async def test_invalid_utf8_never_reaches_the_gateway(stub, verifier):
    raw = ASK.SerializeToString().replace(b"Ring", b"R\xff\xfeg")
    async with open_channel(stub.address, Tls()) as channel:
        method = channel.unary_stream("/forerun.v1.GatewayService/Generate")
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in method(raw):
                pass
    assert verifier.requests == []


async def test_unknown_things_are_not_found_and_offsets_beyond_the_end_out_of_range(stub):
    assert (await refusal(stub.Generate(gateway_pb2.GenerateRequest(prompt="x", model="gpt"))))[0] is (
        grpc.StatusCode.NOT_FOUND
    )
    unknown = gateway_pb2.ResumeRequest(session_id="nobody")
    assert (await refusal(stub.Resume(unknown)))[:2] == (grpc.StatusCode.NOT_FOUND, "SESSION_NOT_FOUND")
    events = [event async for event in stub.Generate(ASK)]
    beyond = gateway_pb2.ResumeRequest(session_id=events[0].opened.session_id, offset=10_000)
    assert (await refusal(stub.Resume(beyond)))[0] is grpc.StatusCode.OUT_OF_RANGE


async def test_a_client_that_cancels_leaves_its_generation_running(stub, verifier, answer):
    stop = verifier.stop_at(6)
    call = stub.Generate(ASK)
    session_id = (await call.read()).opened.session_id
    await stop.reached.wait()
    call.cancel()
    stop.go.set()
    resumed = [e async for e in stub.Resume(gateway_pb2.ResumeRequest(session_id=session_id))]
    assert tuple(t for e in resumed for t in e.delta.token_ids) == answer
    assert len(verifier.requests) == 1


@pytest.mark.parametrize(
    "metadata", [(), (("authorization", "Bearer wrong"),), (("authorization", "right"),)]
)
async def test_without_the_key_nothing_is_answered(make_gateway, verifier, open_door, metadata):
    stub = await open_door(await make_gateway(verifier), keys=["right"])
    calls = [
        stub.Generate(ASK, metadata=metadata),
        stub.Resume(gateway_pb2.ResumeRequest(session_id="x"), metadata=metadata),
    ]
    for call in calls:
        assert (await refusal(call))[0] is grpc.StatusCode.UNAUTHENTICATED
    for method, request in (
        (stub.GetSession, gateway_pb2.GetSessionRequest(session_id="x")),
        (stub.DeleteSession, gateway_pb2.DeleteSessionRequest(session_id="x")),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(request, metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_wrong_key_is_said_to_be_unknown(make_gateway, verifier, open_door):
    stub = await open_door(await make_gateway(verifier), keys=["right"])
    said = []
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Generate(ASK, metadata=metadata).read()
        said.append(caught.value.details())
    assert said == ["an API key is needed: Authorization: Bearer KEY", "this API key is not known here"]


async def test_with_the_key_all_is_answered(make_gateway, verifier, open_door, answer):
    stub = await open_door(await make_gateway(verifier), keys=["other", "right"])
    events = [e async for e in stub.Generate(ASK, metadata=(("authorization", "Bearer right"),))]
    assert tuple(t for e in events for t in e.delta.token_ids) == answer


async def test_one_trace_spans_client_verifier_and_drafter(
    make_gateway, verifier, make_drafter, open_door, answer
):
    drafter = await make_drafter()
    stub = await open_door(await make_gateway(verifier, drafters=(drafter,)))
    stop = verifier.stop_at(4)
    trace = "0af7651916cd43dd8448eb211c80319c"
    call = stub.Generate(ASK, metadata=(("traceparent", f"00-{trace}-b7ad6b7169203331-01"),))
    await drafter.asked.get()
    stop.go.set()
    assert tuple([t async for e in call for t in e.delta.token_ids]) == answer
    assert [m["traceparent"].split("-")[1] for m in (*verifier.metadata, *drafter.metadata)] == [trace] * 2


async def test_metrics_count_answers_tokens_and_commits(stub, answer):
    names = {
        "forerun_gateway_requests_total": {"outcome": "accepted"},
        "forerun_gateway_tokens_committed_total": {},
        "forerun_gateway_commit_seconds_count": {},
        "forerun_gateway_generations_ended_total": {"end": "finished"},
    }
    before = [REGISTRY.get_sample_value(name, labels) or 0 for name, labels in names.items()]
    await refusal(stub.Generate(gateway_pb2.GenerateRequest(prompt="")))
    async for _ in stub.Generate(ASK):
        pass
    after = [REGISTRY.get_sample_value(name, labels) for name, labels in names.items()]
    counted = [b - a for a, b in zip(before, after, strict=True)]
    *others, num_commits, num_ended = counted
    assert (*others, num_ended) == (1, len(answer), 1)
    # What is settled while a commit is under way goes into one.
    assert 1 <= num_commits <= -(-len(answer) // 2)
    assert REGISTRY.get_sample_value("forerun_gateway_requests_total", {"outcome": "empty"}) >= 1


async def test_a_verifier_that_cannot_be_reached_is_named_at_both_doors_without_the_whole_wait(
    open_door, store, routing
):
    router = await routing("127.0.0.1:1")
    gateway = Gateway(store, router, patience=Patience(verifier_s=10_000, unreached_s=0))
    message = "no verifier is ready now: 127.0.0.1:1 connection refused"
    stub = await open_door(gateway)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Generate(ASK).read()
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.UNAVAILABLE, message)
    async with served(gateway) as url, httpx.AsyncClient(base_url=url) as client:
        reply = await client.post("/v1/completions", json={"prompt": "Ring the bell"})
    assert (reply.status_code, reply.json()["error"]["message"]) == (503, message)
