"""What the official client cannot send or see: raw requests against a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY

from forerun.errors import AlreadyRunning, InvalidRequest
from gateway.http import event_stream, guards
from gateway.http.app import create_app
from gateway.http.unsupported import UNSUPPORTED
from gateway.request import GenerationRequest
from tests.gateway.scripted import DELTAS, FINISHED, OPENED, ScriptedGateway, Stage, served

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[tuple[Stage, str]]:
    stage = Stage()
    async with served(stage) as url:
        yield stage, url


@pytest.fixture
def gateway(stage: tuple[Stage, str]) -> ScriptedGateway:
    stage[0].current = ScriptedGateway()
    return stage[0].current


@pytest_asyncio.fixture(loop_scope="module")
async def web(gateway: ScriptedGateway, stage: tuple[Stage, str]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=stage[1], timeout=30) as client:
        yield client


def error_of(reply: httpx.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def events_of(text: str) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(item) for item in data]


# Values that ask for something; others must be refused whatever they are.
ASKING = {
    "logit_bias": {"5": 1},
    "n": 2,
    "tools": [{"type": "function"}],
    "response_format": {"type": "json_object"},
}


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
async def test_fields_that_change_the_answer_are_refused_by_name(web, path: str) -> None:
    ask = ASK if path == CHAT else {"prompt": "hi"}
    for field in UNSUPPORTED:
        error = error_of(await web.post(path, json=ask | {field: ASKING.get(field, "something")}), 400)
        assert (error["param"], error["code"]) == (field, "unsupported_field")
        assert field in error["message"]
    refused = error_of(await web.post(path, json=ask | {"n": 0}), 400)
    assert refused["message"] == "n is not supported, except as 1"


async def test_fields_that_say_what_happens_anyway_are_accepted(web, gateway) -> None:
    for field, values in UNSUPPORTED.items():
        for value in (None, *values):
            assert (await web.post(CHAT, json=ASK | {field: value})).status_code == 200, (field, value)
    assert all(request == gateway.requests[0] for request in gateway.requests)


@pytest.mark.parametrize(("field", "value"), [("n", True), ("echo", 0), ("logprobs", 0), ("temprature", 0.5)])
async def test_values_and_names_that_only_look_harmless_are_refused(web, field: str, value: Any) -> None:
    assert error_of(await web.post(CHAT, json=ASK | {field: value}), 400)["param"] == field


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "messages", "malformed"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": "hi"}, "messages", "malformed"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "malformed"),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "malformed"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "bad_role"),
        ({"messages": [*ASK["messages"], {"role": "x", "content": ""}]}, "messages[1].role", "bad_role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0]",
            "malformed",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages[0].content[0]",
            "unsupported_content",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "messages[0].tool_calls",
            "unsupported_field",
        ),
        (ASK | {"temperature": "hot"}, "temperature", "malformed"),
        (ASK | {"temperature": -1}, "temperature", "out_of_range"),
        (ASK | {"top_k": -2}, "top_k", "out_of_range"),
        (ASK | {"seed": 1.5}, "seed", "malformed"),
        (ASK | {"seed": -1}, "seed", "out_of_range"),
        (ASK | {"stop": [1]}, "stop", "malformed"),
        (ASK | {"stop": ["x"] * 17}, "stop", "too_many"),
        (ASK | {"stream": "yes"}, "stream", "malformed"),
        (ASK | {"acceptance": "always"}, "acceptance", "malformed"),
        (ASK | {"session_id": "../x"}, "session_id", "malformed"),
        (ASK | {"stream_options": {"include_usage": True}}, "stream_options", "conflict"),
        (ASK | {"stream": True, "stream_options": {"x": 1}}, "stream_options.x", "unknown_field"),
        (ASK | {"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens", "conflict"),
    ],
)
async def test_a_bad_chat_names_the_field_at_fault(web, gateway, body: dict, param: str, code: str) -> None:
    error = error_of(await web.post(CHAT, json=body), 400)
    assert (error["param"], error["code"], error["type"]) == (param, code, "invalid_request_error")
    assert not gateway.requests


async def test_a_wrong_role_is_told_every_right_one(web) -> None:
    error = error_of(await web.post(CHAT, json={"messages": [{"role": "wizard", "content": "x"}]}), 400)
    assert error["message"] == "'wizard' is not one of system, developer, user, assistant"
    for role in error["message"].rpartition(" one of ")[2].split(", "):
        assert (await web.post(CHAT, json={"messages": [{"role": role, "content": "x"}]})).status_code == 200


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        (None, "malformed"),
        ("", "empty"),
        ([], "empty"),
        (["a", "b"], "batch_not_supported"),
        ([[1], [2]], "batch_not_supported"),
        ([1, "a"], "malformed"),
        ([True], "malformed"),
        (5, "malformed"),
    ],
)
async def test_a_bad_prompt_is_refused_by_name(web, prompt: Any, code: str) -> None:
    error = error_of(await web.post("/v1/completions", json={"prompt": prompt}), 400)
    assert (error["param"], error["code"]) == ("prompt", code)


@pytest.mark.parametrize(
    ("prompt", "text", "ids"), [(["a"], "a", None), ([[1, 2]], None, (1, 2)), ("a", "a", None)]
)
async def test_a_list_of_one_is_one_prompt(web, gateway, prompt: Any, text: Any, ids: Any) -> None:
    assert (await web.post("/v1/completions", json={"prompt": prompt})).status_code == 200
    assert (gateway.requests[0].prompt, gateway.requests[0].token_ids) == (text, ids)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"",
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "top_p": Infinity}',
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"[]",
        b'"x"',
        b'{"prompt": [' + b"9" * 5000 + b"]}",
    ],
)
async def test_bytes_that_are_no_request_cost_one_clear_answer(web, gateway, body: bytes) -> None:
    reply = await web.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    error_of(reply, 400)
    assert not gateway.requests


async def test_a_body_must_be_declared_as_json(web) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        reply = await web.post(CHAT, content=json.dumps(ASK), headers={"Content-Type": kind})
        assert error_of(reply, 415)["code"] == "not_json"


@pytest.mark.parametrize("encoding", ["gzip", "identity, br", "Deflate", "x"])
async def test_an_encoded_body_is_refused(web, gateway, encoding: str) -> None:
    reply = await web.post(CHAT, json=ASK, headers={"Content-Encoding": encoding})
    assert error_of(reply, 415)["code"] == "body_encoded"
    assert reply.headers["accept-encoding"] == "identity"
    assert not gateway.requests


async def test_a_body_that_is_said_not_to_be_encoded_is_served(web) -> None:
    assert (await web.post(CHAT, json=ASK, headers={"Content-Encoding": "Identity"})).status_code == 200


async def test_top_k_is_refused_in_words_that_are_true(web, gateway) -> None:
    for wrong in (-2, 2**31):
        error = error_of(await web.post(CHAT, json=ASK | {"top_k": wrong}), 400)
        assert error["message"] == "top_k must be between 1 and 2147483647, or 0 or -1 for all"
    for right, meant in ((1, 1), (2**31 - 1, 2**31 - 1), (0, 0), (-1, 0), (None, 0)):
        assert (await web.post(CHAT, json=ASK | {"top_k": right})).status_code == 200
        assert gateway.requests[-1].sampling.top_k == meant


async def test_a_client_that_leaves_in_its_body_is_no_fault_of_the_server(gateway) -> None:
    sent: list[int] = []
    events = iter([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> dict:
        return next(events)

    async def send(message: dict) -> None:
        sent.append(message.get("status", 0))

    scope = {
        "type": "http",
        "method": "POST",
        "path": CHAT,
        "raw_path": CHAT.encode(),
        "query_string": b"",
        "headers": [],
    }
    await create_app(gateway, None)(scope, receive, send)
    assert sent[0] == guards.CLIENT_GONE
    assert not gateway.requests


@pytest.mark.parametrize("is_declared", [True, False])
async def test_a_body_too_large_is_answered_and_not_read_into_memory(
    gateway, monkeypatch, is_declared
) -> None:
    monkeypatch.setattr(guards.BodyLimit.__init__, "__defaults__", (1000, guards.MAX_BODY_S))
    body = b'{"prompt": "' + b"x" * 20_000_000 + b'"}'

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(body), 1_000_000):
            yield body[start : start + 1_000_000]

    async with served(gateway) as url, httpx.AsyncClient(base_url=url, timeout=30) as web:
        reply = await web.post(
            "/v1/completions",
            content=body if is_declared else pieces(),
            headers={"Content-Type": "application/json"},
        )
        assert error_of(reply, 413)["code"] == "body_too_large"
        assert (await web.post("/v1/completions", json={"prompt": "x"})).status_code == 200


async def test_a_body_declared_too_large_is_answered_before_any_of_it_is_sent(gateway) -> None:
    async with served(gateway) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {guards.MAX_BODY_BYTES + 1}\r\n\r\n".encode())
        async with asyncio.timeout(30):
            assert (await reader.readline()).split()[1] == b"413"
        writer.close()
    assert not gateway.requests


@pytest.mark.parametrize("is_dripping", [False, True])
async def test_a_body_that_does_not_end_is_a_timeout_and_frees_its_connection(
    gateway, monkeypatch, is_dripping
) -> None:
    monkeypatch.setattr(guards.BodyLimit.__init__, "__defaults__", (guards.MAX_BODY_BYTES, 0.1))
    idle = REGISTRY.get_sample_value("forerun_http_requests_in_progress")
    async with served(gateway) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: 1000000\r\n\r\n{{".encode())

        async def drip() -> None:
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b" ")
                    await writer.drain()
                    await asyncio.sleep(0.001)

        dripping = asyncio.create_task(drip()) if is_dripping else None
        async with asyncio.timeout(30):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split()[0])
            reply = httpx.Response(int(head.split()[1]), content=await reader.readexactly(length))
            if dripping is None:
                assert await reader.read() == b""
            else:
                await dripping
        writer.close()
        assert error_of(reply, 408)["code"] == "body_too_slow"
        assert REGISTRY.get_sample_value("forerun_http_requests_in_progress") == idle
        async with httpx.AsyncClient(base_url=url, timeout=30) as web:
            assert (await web.post(CHAT, json=ASK)).status_code == 200
    assert len(gateway.requests) == 1


async def test_unknown_paths_and_methods_answer_in_the_same_shape(web) -> None:
    assert error_of(await web.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(await web.get("/"), 404)["code"] == "not_found"
    assert error_of(await web.get(CHAT), 405)["code"] == "method_not_allowed"


async def test_a_bug_shows_nothing_of_itself(web, gateway) -> None:
    gateway.events = [OPENED, ValueError("a secret")]
    reply = await web.post(CHAT, json=ASK)
    assert error_of(reply, 500) == {
        "message": "internal fault",
        "type": "server_error",
        "param": None,
        "code": "internal_fault",
    }


async def test_health_and_metrics_need_no_key(gateway) -> None:
    async with served(gateway, "k") as url, httpx.AsyncClient(base_url=url) as web:
        assert error_of(await web.get("/v1/models"), 401)["type"] == "authentication_error"
        assert [(await web.get(p)).status_code for p in ("/livez", "/healthz", "/readyz")] == [200, 200, 200]
        gateway.is_healthy = False
        assert [(await web.get(p)).status_code for p in ("/livez", "/healthz", "/readyz")] == [200, 503, 503]
        metrics = (await web.get("/metrics")).text
        assert 'forerun_http_requests_total{method="GET",route="none",status="401"}' in metrics
        assert 'forerun_http_requests_total{method="GET",route="/healthz",status="503"}' in metrics
        assert "forerun_http_request_seconds_bucket" in metrics


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_detaches_its_answer(gateway, stream: bool) -> None:
    gateway.gate.clear()  # the answer would never end by itself
    async with served(gateway) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as web:
            asking = asyncio.create_task(_read_a_line(web, ASK | {"stream": stream}))
            if stream:
                assert await asking == "id: 0"
            else:
                await gateway.until_emitted(1)
                asking.cancel()
        await gateway.detached.wait()


async def _read_a_line(web: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with web.stream("POST", CHAT, json=body) as reply:
        async for line in reply.aiter_lines():
            return line
    return ""


async def test_a_client_gone_before_the_first_frame_still_detaches_its_answer(gateway) -> None:
    events = await gateway.generate(GenerationRequest(prompt="hi"))

    async def untouched() -> AsyncGenerator[bytes, None]:
        yield b""

    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        await asyncio.Event().wait()

    await event_stream.EventStream(untouched(), events)({}, receive, send)
    assert gateway.detached.is_set()


async def test_a_silent_stream_is_kept_alive_with_comments(gateway, monkeypatch) -> None:
    monkeypatch.setattr(event_stream.EventStream.__init__, "__defaults__", (0.001,))
    gateway.gate.clear()
    async with served(gateway) as url, httpx.AsyncClient(base_url=url, timeout=30) as web:
        async with web.stream("POST", CHAT, json=ASK | {"stream": True}) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            seen = []
            async for line in reply.aiter_lines():
                seen.append(line)
                if line == ": keep-alive":
                    gateway.gate.set()
        assert seen[-2:] == ["data: [DONE]", ""]


async def test_a_client_that_does_not_read_holds_back_only_emission(gateway) -> None:
    piece = DELTAS[0].__class__(0, (1,), (DELTAS[0].origins[0],), "x" * 1_000_000)
    gateway.events = [OPENED, *[piece] * 50, FINISHED]
    async with served(gateway) as url, httpx.AsyncClient(base_url=url, timeout=30) as web:
        async with web.stream("POST", CHAT, json=ASK | {"stream": True}) as reply:
            lines = reply.aiter_lines()
            await anext(lines)
            await gateway.until_emitted(3)
            assert (await web.get("/livez")).status_code == 200
            assert gateway.num_emitted < 50  # 50 MB fit in no buffer on the way
            rest = [line async for line in lines if line]
        assert rest[-1] == "data: [DONE]"


async def test_a_session_resumes_from_any_offset(web) -> None:
    events = events_of((await web.get("/v1/sessions/s-5/stream")).text)
    assert [e["type"] for e in events] == ["opened", "delta", "delta", "delta", "finished"]
    assert events[0]["session_id"] == "s-5"
    assert [t for e in events[1:4] for t in e["token_ids"]] == [11, 12, 13, 14, 15]
    assert events[3]["origins"] == ["drafted", "bonus"]
    assert (events[4]["finish_reason"], events[4]["metrics"]["session_id"]) == ("length", "s-5")
    later = events_of((await web.get("/v1/sessions/s-5/stream?offset=3")).text)
    assert later[1:] == events[3:]


async def test_the_ids_of_a_stream_are_the_offsets_to_resume_from(web) -> None:
    text = (await web.post(CHAT, json=ASK | {"stream": True})).text
    ids = [line.removeprefix("id: ") for line in text.splitlines() if line.startswith("id: ")]
    assert ids == ["0", "2", "5", "5", "5"]  # a delta without text sends nothing
    reply = await web.get("/v1/sessions/s-1/stream?offset=0", headers={"Last-Event-ID": ids[1]})
    assert events_of(reply.text)[1]["offset"] == 2


@pytest.mark.parametrize("offset", ["-1", "x", "1.5", "9" * 5000, "٣"])
async def test_an_offset_that_is_no_number_of_tokens_is_refused(web, offset: str) -> None:
    reply = await web.get("/v1/sessions/s-5/stream", params={"offset": offset})
    assert error_of(reply, 400)["param"] == "offset"


async def test_an_offset_beyond_the_end_is_refused(web) -> None:
    error = error_of(await web.get("/v1/sessions/s-5/stream?offset=6"), 400)
    assert (error["code"], error["param"]) == ("offset_beyond_end", "offset")


@pytest.mark.parametrize("make", [lambda: {"max_tokens": 0}, lambda: {"max_completion_tokens": 0}])
async def test_a_limit_is_named_as_the_client_wrote_it(web, gateway, make: Callable[[], dict]) -> None:
    gateway.refusal = InvalidRequest("too few", field="max_tokens")
    assert error_of(await web.post(CHAT, json=ASK | make()), 400)["param"] == next(iter(make()))
    gateway.refusal = InvalidRequest("too long", field="prompt", reason="CONTEXT_EXCEEDED")
    error = error_of(await web.post(CHAT, json=ASK), 400)
    assert (error["param"], error["code"]) == ("messages", "context_length_exceeded")


async def test_a_request_id_that_is_taken_is_a_conflict_that_no_retry_mends(web, gateway) -> None:
    gateway.refusal = AlreadyRunning("taken", reason="REQUEST_ID_REUSED", field="request_id")
    reply = await web.post(CHAT, json=ASK | {"request_id": "r"})
    error = error_of(reply, 409)
    assert (error["code"], error["param"]) == ("request_id_reused", "request_id")
    assert reply.headers["x-should-retry"] == "false"
    gateway.refusal = AlreadyRunning("busy")
    assert "x-should-retry" not in (await web.post(CHAT, json=ASK)).headers


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (CHAT, {"messages": []}, "messages must not be empty"),
        (CHAT, ASK | {"temperature": -1}, "temperature must be between 0 and 100"),
        ("/v1/completions", {"prompt": []}, "prompt must not be empty"),
    ],
)
async def test_a_refusal_speaks_of_this_doors_fields(web, path: str, body: dict, words: str) -> None:
    error = error_of(await web.post(path, json=body), 400)
    assert error["message"] == words
    assert words.startswith(error["param"])


async def test_a_limit_is_worded_as_the_client_wrote_it(web, gateway) -> None:
    gateway.refusal = InvalidRequest("max_tokens must be at least 1", field="max_tokens")
    error = error_of(await web.post(CHAT, json=ASK | {"max_completion_tokens": 0}), 400)
    assert error["message"] == "max_completion_tokens must be at least 1"
