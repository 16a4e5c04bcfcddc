from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.core.noise import noise_key
from forerun.core.types import Acceptance, Mode, Sampling
from forerun.errors import InvalidRequest
from gateway.request import GenerationRequest, validate
from gateway.store.session import Turn

ASK = GenerationRequest(prompt="Ring the bell")


def test_defaults_are_greedy_and_256_tokens_or_what_the_context_leaves(small, model):
    prepared = validate(ASK, model, small)
    assert (prepared.turn.mode, prepared.turn.seed, prepared.turn.noise_key) == (Mode.GREEDY, None, b"")
    assert prepared.turn.max_tokens == 256
    assert prepared.token_ids == tuple(small.encode("Ring the bell"))
    narrow = replace(model, max_context=len(prepared.token_ids) + 9)
    assert validate(ASK, narrow, small).turn.max_tokens == 9


def test_a_prompt_continues_the_history_and_messages_replace_it(small, model):
    history = (5, 6, 7)
    assert validate(ASK, model, small, history=history).token_ids == (5, 6, 7, *small.encode(ASK.prompt))
    ids = replace(ASK, prompt=None, token_ids=(9,))
    assert validate(ids, model, small, history=history).token_ids == (5, 6, 7, 9)
    chat = replace(ASK, prompt=None, messages=(("user", "hi"),))
    assert validate(chat, model, small, history=history).token_ids == tuple(small.chat((("user", "hi"),)))


def test_a_drawn_seed_is_new_each_time_and_keys_the_noise(small, model):
    request = replace(ASK, sampling=Sampling(temperature=1.0), acceptance=Acceptance.COUPLED)
    drawn = [validate(request, model, small) for _ in range(2)]
    assert drawn[0].turn.seed != drawn[1].turn.seed
    for prepared in drawn:
        assert 0 <= prepared.turn.seed < 2**53
        assert prepared.turn.noise_key == noise_key(prepared.turn.seed, prepared.token_ids)


def test_the_servers_setting_decides_what_a_request_leaves_open(small, model):
    request = replace(ASK, sampling=Sampling(temperature=1.0))
    assert validate(request, model, small, acceptance=Acceptance.COUPLED).turn.mode is Mode.COUPLED
    asked = replace(request, acceptance=Acceptance.REJECTION)
    assert validate(asked, model, small, acceptance=Acceptance.COUPLED).turn.mode is Mode.REJECTION
    with pytest.raises(InvalidRequest):
        validate(replace(request, seed=1), model, small, acceptance=Acceptance.REJECTION)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"prompt": "lone \ud800"}, "prompt"),
        ({"prompt": None, "messages": (("user", "\udfff"),)}, "messages"),
        ({"stop": ("\ud800",)}, "stop"),
        ({"token_ids": (1,)}, "token_ids"),
        ({"prompt": None, "token_ids": (-1,)}, "token_ids"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"sampling": Sampling(temperature=float("inf"))}, "sampling.temperature"),
        ({"sampling": Sampling(top_p=1.5)}, "sampling.top_p"),
    ],
)
def test_the_field_at_fault_is_named(small, model, changes, field):
    with pytest.raises(InvalidRequest) as caught:
        validate(replace(ASK, **changes), model, small)
    assert caught.value.field == field


def test_a_turn_survives_the_store(small, model):
    request = replace(ASK, sampling=Sampling(temperature=0.1 + 0.2), seed=2**64 - 1, stop=('"', "é\x00"))
    turn = validate(request, model, small).turn
    fields = {k: v if isinstance(v, bytes) else v.encode() for k, v in turn.to_fields().items()}
    assert Turn.from_fields(fields) == turn


@pytest.mark.parametrize("field", ["prompt", "messages"])
def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(small, model, monkeypatch, field):
    def tokenized(*_args, **_named):
        pytest.fail("it was tokenized")

    text = "x" * (model.max_context * small.longest_piece + 1)
    monkeypatch.setattr(small, "encode", tokenized)
    monkeypatch.setattr(small, "chat", tokenized)
    request = replace(ASK, **{"prompt": None, field: text if field == "prompt" else (("user", text),)})
    with pytest.raises(InvalidRequest) as refused:
        validate(request, model, small)
    assert (refused.value.reason, refused.value.field) == ("CONTEXT_EXCEEDED", field)


def test_a_developer_speaks_to_the_template_as_the_system(small, model):
    developer, system = (
        validate(replace(ASK, prompt=None, messages=((role, "Be brief."), ("user", "hi"))), model, small)
        for role in ("developer", "system")
    )
    assert developer.token_ids == system.token_ids
