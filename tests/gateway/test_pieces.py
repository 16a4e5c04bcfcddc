from __future__ import annotations

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models

from forerun.core.types import FinishReason, TokenizerFiles
from forerun.errors import FailedPrecondition
from gateway.pieces import decoder_of
from gateway.text import Tokenizer, visible

LLAMA_VOCABULARY = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{b:02X}>" for b in range(256)),
    "▁",
    "▁the",
    "▁bell",
    "s",
    "é",
]


def llama_like(decoder: decoders.Decoder) -> tuple[Tokenizer, tokenizers.Tokenizer]:
    raw = tokenizers.Tokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(LLAMA_VOCABULARY)}, merges=[], byte_fallback=True)
    )
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    raw.decoder = decoder
    return Tokenizer(TokenizerFiles(raw.to_str().encode(), "", {})), raw


@given(st.lists(st.sampled_from(["▁", "▁the", "▁bell", "s", "é", "</s>"]), max_size=8), st.text(max_size=5))
def test_sentencepiece_text_equals_the_librarys_decoding(words: list[str], tail: str) -> None:
    ours, raw = llama_like(
        decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    )
    ids = [LLAMA_VOCABULARY.index(w) for w in words] + [3 + byte for byte in tail.encode()]
    assert ours.decode(ids) == raw.decode(ids, skip_special_tokens=True)


def test_only_the_beginning_of_a_text_loses_its_space() -> None:
    ours, _ = llama_like(
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    )
    ids = [LLAMA_VOCABULARY.index(w) for w in ("<s>", "▁the", "▁bell")]
    assert visible(ours, ids, FinishReason.NONE, None) == "the bell"


def test_metaspace_decoder_is_understood() -> None:
    ours, raw = llama_like(decoders.Metaspace())
    ids = [LLAMA_VOCABULARY.index(w) for w in ("▁the", "▁bell", "s")]
    assert ours.decode(ids) == raw.decode(ids) == "the bells"


def test_a_decoder_whose_pieces_do_not_concatenate_is_refused_by_name() -> None:
    with pytest.raises(FailedPrecondition, match="WordPiece") as refused:
        decoder_of({"type": "WordPiece", "prefix": "##", "cleanup": True})
    assert refused.value.reason == "TOKENIZER_UNSUPPORTED"


def test_files_that_are_no_tokenizer_are_refused() -> None:
    with pytest.raises(FailedPrecondition) as refused:
        Tokenizer(TokenizerFiles(json.dumps({"model": 1}).encode(), "", {}))
    assert refused.value.reason == "TOKENIZER_BROKEN"
