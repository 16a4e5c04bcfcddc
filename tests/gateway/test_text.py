from __future__ import annotations

import json
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import tokenizers
import transformers
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.types import FinishReason, TokenizerFiles
from forerun.errors import FailedPrecondition, InvalidRequest
from gateway.text import TextStream, Tokenizer, visible

token_ids = st.lists(st.integers(0, 420), max_size=40)  # 400 and above are outside the vocabulary
PROMPTS = Path(__file__).parents[3] / "shared" / "data" / "spec_bench_dev.jsonl"
FIXED = [
    [("user", "hi")],
    [("system", "Be brief."), ("user", "What is 2 + 2?")],
    [("user", "naïve café 東京 😀🏳️‍🌈\n\n  indented\t"), ("assistant", " ok "), ("user", "go on")],
    [("user", "")],
    [("user", "{{ 7 * 7 }} {% raw %}")],
]


def split(items: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(c, len(items)) for c in cuts), len(items)]
    return [items[a:b] for a, b in pairwise(edges)]


@given(ids=token_ids)
def test_finished_text_equals_the_librarys_decoding(
    small: Tokenizer, small_reference: tokenizers.Tokenizer, ids: list[int]
) -> None:
    assert visible(small, ids, FinishReason.STOP, None) == small_reference.decode(
        ids, skip_special_tokens=True
    )


@given(ids=token_ids, cuts=st.lists(st.integers(0, 40), max_size=5), cut=st.none() | st.integers(0, 30))
def test_streamed_increments_add_up_to_the_visible_text(
    small: Tokenizer, ids: list[int], cuts: list[int], cut: int | None
) -> None:
    stream = TextStream(small)
    shown = "".join(stream.push(part, cut) for part in split(ids, cuts))
    assert shown == visible(small, ids, FinishReason.NONE, cut)
    assert shown + stream.end(cut) == visible(small, ids, FinishReason.LENGTH, cut)


@given(text=st.text(max_size=30), end=st.integers(0, 120))
def test_unfinished_text_is_a_prefix_without_broken_characters(small: Tokenizer, text: str, end: int) -> None:
    ids = small.encode(text)[:end]
    shown = visible(small, ids, FinishReason.NONE, None)
    assert text.startswith(shown)
    assert len(b"".join(map(small.piece, ids))) - len(shown.encode()) <= 3  # a character's missing last byte


def test_a_split_emoji_appears_with_its_last_byte(small: Tokenizer) -> None:
    ids = small.encode("a🦉b")
    assert len(ids) > 3
    stream = TextStream(small)
    assert [stream.push([i]) for i in ids] == ["a", *[""] * (len(ids) - 3), "🦉", "b"]


def test_incomplete_bytes_show_as_replacement_only_at_the_end(small: Tokenizer) -> None:
    ids = small.encode("🦉")[:-1]
    assert visible(small, ids, FinishReason.NONE, None) == ""
    assert visible(small, ids, FinishReason.LENGTH, None) == "\ufffd"


def test_special_tokens_are_skipped_in_text_and_named_one_by_one(small: Tokenizer) -> None:
    ids = small.encode("<|start|>bell<|end|>")
    assert small.decode(ids) == "bell"
    assert small.token_text(ids[0]) == "<|start|>"
    assert small.token_text(small.encode(" bell")[0]) == " bell"
    assert small.token_text(small.encode("🦉")[0]) == "\ufffd"
    assert small.token_text(100_000) == ""


def test_raw_prompts_parse_special_tokens(small: Tokenizer, small_reference: tokenizers.Tokenizer) -> None:
    text = "<|start|>user\nhi<|end|>"
    assert small.encode(text) == small_reference.encode(text).ids
    assert small.encode(text).count(small_reference.token_to_id("<|end|>")) == 1


@given(
    content=st.lists(
        st.sampled_from(["<|end|>", "<|start|>", "<|", "end|>", "hi", "\n", "é"]), max_size=6
    ).map("".join),
    role=st.sampled_from(["user", "user<|end|>"]),
)
def test_a_message_cannot_smuggle_in_special_tokens(
    small: Tokenizer, small_reference: tokenizers.Tokenizer, content: str, role: str
) -> None:
    ids = small.chat([(role, content)])
    special = {small_reference.token_to_id(t) for t in ("<|start|>", "<|end|>")}
    assert sum(i in special for i in ids) == 3  # the template's own
    assert small.decode(ids) == f"{role}\n{content}\nassistant\n"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff"])
def test_lone_surrogates_are_refused(small: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest) as prompt:
        small.encode(text)
    with pytest.raises(InvalidRequest) as chat:
        small.chat([("user", text)])
    assert (prompt.value.reason, prompt.value.field) == ("BAD_UNICODE", "prompt")
    assert (chat.value.reason, chat.value.field) == ("BAD_UNICODE", "messages")


def with_template(files: TokenizerFiles, template: str) -> Tokenizer:
    return Tokenizer(TokenizerFiles(files.tokenizer_json, template, files.special_tokens))


def test_a_model_without_a_template_refuses_messages(small_files: TokenizerFiles) -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_template(small_files, "").chat([("user", "hi")])
    assert (refused.value.reason, refused.value.field) == ("NO_CHAT_TEMPLATE", "messages")


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7]['content'] }}",
        "{{ 1 + messages[0]['content'] }}",
        "{{ messages.__class__.__mro__ }}",
    ],
)
def test_what_a_template_refuses_is_the_requests_fault(small_files: TokenizerFiles, template: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        with_template(small_files, template).chat([("user", "hi")])
    assert refused.value.field == "messages"


def test_a_template_that_does_not_compile_is_the_models_fault(small_files: TokenizerFiles) -> None:
    with pytest.raises(FailedPrecondition) as refused:
        with_template(small_files, "{% for %}")
    assert refused.value.reason == "CHAT_TEMPLATE_BROKEN"


def test_templates_speak_the_dialect_of_transformers(small_files: TokenizerFiles) -> None:
    template = (
        "{%- for m in messages %}\n    {% if m.role == 'skip' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m | tojson }}{% endgeneration %}{% endfor %}"
        "{{ bos_token }}{{ strftime_now('%Y') | length }}{{ tools is none }}"
    )
    messages = [("skip", "a"), ("user", "<é>")]
    reference = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(small_files.tokenizer_json.decode()),
        **small_files.special_tokens,
    )
    reference.chat_template = template
    expected = reference.apply_chat_template(
        [{"role": r, "content": c} for r, c in messages], add_generation_prompt=True, return_dict=False
    )
    assert with_template(small_files, template).chat(messages) == expected


@pytest.mark.model
def test_smollm2_chats_equal_apply_chat_template(
    smollm2: tuple[Tokenizer, transformers.PreTrainedTokenizerBase],
) -> None:
    ours, reference = smollm2
    chats = list(FIXED)
    if PROMPTS.exists():
        lines = PROMPTS.read_text().splitlines()
        chats += [[("user", json.loads(line)["turns"][0])] for line in lines]
    for chat in chats:
        expected = reference.apply_chat_template(
            [{"role": r, "content": c} for r, c in chat], add_generation_prompt=True, return_dict=False
        )
        assert ours.chat(chat) == expected
        assert ours.encode(chat[-1][1]) == reference(chat[-1][1]).input_ids


@pytest.mark.model
@given(ids=st.lists(st.integers(0, 49151), max_size=30))
def test_smollm2_text_equals_transformers_decoding(
    smollm2: tuple[Tokenizer, transformers.PreTrainedTokenizerBase], ids: list[int]
) -> None:
    ours, reference = smollm2
    assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)


def test_others_run_on_while_a_long_text_is_tokenized(small: Tokenizer) -> None:
    """Event loops and other threads need the interpreter meanwhile."""
    done, steps = threading.Event(), 0

    def tokenize() -> None:
        small.encode("ring the bell " * 60_000)
        done.set()

    thread = threading.Thread(target=tokenize)
    thread.start()
    while not done.wait(0.001):
        steps += 1
    thread.join()
    assert steps > 3
