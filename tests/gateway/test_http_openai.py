"""The official client, unchanged, against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio

from forerun import errors
from forerun.core.types import Acceptance, FinishReason, Sampling
from gateway.events import Finished
from tests.gateway.scripted import DELTAS, FINISHED, OPENED, TEXT, ScriptedGateway, Stage, served

ASK = {"model": "org/bell", "messages": [{"role": "user", "content": "hi"}]}
SPECULATION = {
    "acceptance_rate": 3 / 5,
    "draft_efficiency": 3 / 6,
    "tokens_per_pass": 5 / 4,
    "num_tested": 5,
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 0.5,
    "acceptance_histogram": [1, 1, 1],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 3,
    "num_draft_tokens": 6,
}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage() -> AsyncIterator[tuple[Stage, str]]:
    stage = Stage()
    async with served(stage, "k-1") as url:
        yield stage, url


@pytest.fixture
def gateway(stage: tuple[Stage, str]) -> ScriptedGateway:
    stage[0].current = ScriptedGateway()
    return stage[0].current


@pytest_asyncio.fixture(loop_scope="module")
async def client(gateway: ScriptedGateway, stage: tuple[Stage, str]) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{stage[1]}/v1", api_key="k-1", max_retries=0) as client:
        yield client


def check_metrics(metrics: dict) -> None:
    assert metrics["speculative_decoding"] == SPECULATION
    assert (metrics["mode"], metrics["seed"], metrics["exact"]) == ("coupled", 7, "bitwise")
    assert (metrics["session_id"], metrics["passes"]) == ("s-1", 4)


async def test_a_whole_chat_answer(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        5,
        5,
        10,
    )
    assert (answer.id, answer.object, answer.model) == ("chatcmpl-s-1", "chat.completion", "org/bell")
    assert answer.system_fingerprint == "r1/f32/cpu"
    check_metrics(answer.model_extra["metrics"])


async def test_a_streamed_chat_answer(client: openai.AsyncOpenAI, gateway: ScriptedGateway) -> None:
    stream = await client.chat.completions.create(**ASK, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None, None, None, None, "length"]
    check_metrics(chunks[-2].model_extra["metrics"])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 5
    check_metrics(chunks[-1].model_extra["metrics"])
    assert all(c.usage is None for c in chunks[:-1])
    await gateway.detached.wait()


async def test_without_usage_asked_for_the_last_chunk_has_the_finish_reason(
    client: openai.AsyncOpenAI,
) -> None:
    stream = await client.completions.create(model="org/bell", prompt="hi", stream=True)
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].text for c in chunks) == TEXT
    assert chunks[-1].choices[0].finish_reason == "length"
    check_metrics(chunks[-1].model_extra["metrics"])


async def test_text_arrives_before_the_answer_is_complete(
    client: openai.AsyncOpenAI, gateway: ScriptedGateway
) -> None:
    gateway.gate.clear()
    stream = await client.chat.completions.create(**ASK, stream=True)
    first, second = await anext(stream), await anext(stream)
    assert first.model_extra["session_id"] == "s-1"
    assert second.choices[0].delta.content == "The bell "
    gateway.gate.set()
    assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "length"


async def test_a_whole_completion(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="org/bell", prompt="hi")
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "length")
    assert (answer.id, answer.object) == ("cmpl-s-1", "text_completion")
    check_metrics(answer.model_extra["metrics"])


async def test_the_synchronous_client_works_too(gateway: ScriptedGateway) -> None:
    def ask(url: str) -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            whole = client.chat.completions.create(**ASK).choices[0].message.content
            stream = client.chat.completions.create(**ASK, stream=True)
            return whole, "".join(c.choices[0].delta.content or "" for c in stream)

    async with served(gateway) as url:
        assert await asyncio.to_thread(ask, url) == (TEXT, TEXT)


async def test_models_are_listed_and_found_by_name(client: openai.AsyncOpenAI) -> None:
    assert [m.id async for m in client.models.list()] == ["org/bell"]
    assert (await client.models.retrieve("org/bell")).model_extra["max_model_len"] == 64
    with pytest.raises(openai.NotFoundError) as refused:
        await client.models.retrieve("org/city")
    assert refused.value.code == "model_not_found"


async def test_every_field_reaches_the_gateway(client: openai.AsyncOpenAI, gateway: ScriptedGateway) -> None:
    await client.chat.completions.create(
        model="org/bell",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "ok", "refusal": None, "name": "x"},
        ],
        max_completion_tokens=9,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        stop=["x", "y"],
        user="u",
        n=1,
        logit_bias={},
        response_format={"type": "text"},
        extra_body={
            "top_k": 4,
            "min_p": 0.1,
            "acceptance": "coupled",
            "no_draft": True,
            "session_id": "s-9",
            "request_id": "r-9",
            "ignore_eos": True,
        },
    )
    wanted = gateway.requests[0]
    assert wanted.messages == (("developer", "Be brief."), ("user", "a\nb"), ("assistant", "ok"))
    assert wanted.sampling == Sampling(0.5, 4, 0.9, 0.1)
    assert (wanted.seed, wanted.acceptance, wanted.max_tokens) == (3, Acceptance.COUPLED, 9)
    assert (wanted.stop, wanted.no_draft, wanted.ignore_end_tokens) == (("x", "y"), True, True)
    assert (wanted.model, wanted.session_id, wanted.request_id) == ("org/bell", "s-9", "r-9")


async def test_what_is_unset_is_openais_default(client: openai.AsyncOpenAI, gateway: ScriptedGateway) -> None:
    await client.completions.create(model="org/bell", prompt=[1, 2], stop="x", extra_body={"top_k": -1})
    wanted = gateway.requests[0]
    assert (wanted.token_ids, wanted.prompt, wanted.messages) == ((1, 2), None, None)
    assert wanted.sampling == Sampling(temperature=1.0)
    assert (wanted.seed, wanted.max_tokens, wanted.stop) == (None, None, ("x",))


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (errors.InvalidRequest("no", field="sampling.top_p"), openai.BadRequestError),
        (errors.PermissionRefused("no"), openai.PermissionDeniedError),
        (errors.NotFound("no", field="model"), openai.NotFoundError),
        (errors.AlreadyRunning("no"), openai.ConflictError),
        (errors.FailedPrecondition("no"), openai.ConflictError),
        (errors.Superseded("no"), openai.ConflictError),
        (errors.Overloaded("no", retry_after_s=2.0), openai.RateLimitError),
        (errors.Unavailable("no"), openai.InternalServerError),
        (errors.InternalFault("no"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_errors_become_the_clients_own_exceptions(
    client: openai.AsyncOpenAI,
    gateway: ScriptedGateway,
    refusal: errors.ForerunError,
    kind: type[openai.APIStatusError],
    stream: bool,
) -> None:
    gateway.refusal = refusal
    with pytest.raises(kind) as refused:
        await client.chat.completions.create(**ASK, stream=stream)
    assert refused.value.message.endswith("'no'}") or "no" in refused.value.message
    assert refused.value.code == refusal.reason.lower()
    assert refused.value.param == (refusal.field.removeprefix("sampling.") or None)


async def test_a_wrong_or_missing_key_is_refused(gateway: ScriptedGateway) -> None:
    async with served(gateway, "k-1", "k-2") as url:
        for key, is_good in (("k-1", True), ("k-2", True), ("k-3", False), ("k-", False), ("", False)):
            headers = {"Authorization": f"Bearer {key}" if key else ""}
            async with openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key="x", default_headers=headers, max_retries=0
            ) as client:
                if is_good:
                    await client.models.list()
                    continue
                with pytest.raises(openai.AuthenticationError) as refused:
                    await client.models.list()
                assert refused.value.code == "invalid_api_key"
                assert ("is not known here" in refused.value.message) == bool(key)
                assert refused.value.response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("fault", [errors.Unavailable("verifier lost"), ValueError("a bug with secrets")])
async def test_an_error_in_mid_stream_is_raised_by_the_client(
    client: openai.AsyncOpenAI, gateway: ScriptedGateway, fault: Exception
) -> None:
    gateway.events = [OPENED, DELTAS[0], fault]
    stream = await client.chat.completions.create(**ASK, stream=True)
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    assert (await anext(stream)).choices[0].delta.content == "The bell "
    with pytest.raises(openai.APIError) as raised:
        await anext(stream)
    expected = "verifier lost" if isinstance(fault, errors.ForerunError) else "internal fault"
    assert expected in str(raised.value)
    assert "secrets" not in str(raised.value)
    await gateway.detached.wait()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_session_that_was_cancelled_or_broke_off_is_an_error(
    client: openai.AsyncOpenAI, gateway: ScriptedGateway, stream: bool
) -> None:
    async def ask() -> None:
        answer = await client.chat.completions.create(**ASK, stream=stream)
        if stream:
            async for _ in answer:
                pass

    cancelled = Finished(
        FinishReason.CANCELLED, FINISHED.usage, FINISHED.speculation, FINISHED.timings, FINISHED.exact, ""
    )
    for events in ([OPENED, cancelled], [OPENED, DELTAS[0]]):
        gateway.events = list(events)
        with pytest.raises(openai.APIError):
            await ask()
