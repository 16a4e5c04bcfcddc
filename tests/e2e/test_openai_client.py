"""The official OpenAI client works against a real gateway, unchanged."""

import openai
import pytest

from tests.e2e.whole import QUOTE

pytestmark = [pytest.mark.model, pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

MESSAGES = [{"role": "user", "content": QUOTE}]


@pytest.fixture
async def openai_client(smollm2):
    async with openai.AsyncOpenAI(
        base_url=f"http://{smollm2.gateways[0].addresses['http']}/v1", api_key="none", max_retries=0
    ) as client:
        yield client


async def test_a_chat_answer_streams_to_the_same_text(openai_client):
    (model,) = (await openai_client.models.list()).data
    arguments = {"model": model.id, "messages": MESSAGES, "max_tokens": 32, "temperature": 0}
    whole = await openai_client.chat.completions.create(**arguments)
    stream = await openai_client.chat.completions.create(**arguments, stream=True)
    pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert len(pieces) > 1
    assert whole.usage.completion_tokens > len(pieces)  # drafted tokens come several at a time
    assert whole.choices[0].finish_reason == "stop"


async def test_a_completion_ends_before_its_stop_string(openai_client):
    (model,) = (await openai_client.models.list()).data
    arguments = {
        "model": model.id,
        "prompt": "one two three four five six",
        "max_tokens": 32,
        "temperature": 0,
    }
    free = await openai_client.completions.create(**arguments)
    text = free.choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = await openai_client.completions.create(**arguments, stop=stop)
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("wrong", "field"),
    [({"max_tokens": 0}, "max_tokens"), ({"n": 2}, "n"), ({"temperature": -1}, "temperature")],
)
async def test_what_is_wrong_is_named(openai_client, wrong, field):
    (model,) = (await openai_client.models.list()).data
    with pytest.raises(openai.BadRequestError) as refused:
        await openai_client.chat.completions.create(**{"model": model.id, "messages": MESSAGES, **wrong})
    assert field in str(refused.value)


async def test_an_unknown_model_is_not_found(openai_client):
    with pytest.raises(openai.NotFoundError):
        await openai_client.chat.completions.create(model="none", messages=MESSAGES)
