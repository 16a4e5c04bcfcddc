from __future__ import annotations

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

from forerun.core.types import TokenizerFiles
from forerun.engine.convert import ensure_smollm2
from forerun.engine.tokenizer_files import read_tokenizer
from gateway.text import Tokenizer

SPECIALS = ["<|end|>", "<|start|>"]
CHATML = (
    "{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "The bell will soon ring again, waking the city. " * 3,
    "naïve café, größer, 東京は夜の七時, 😀😃🏳️‍🌈 aa aaa aaaa \n\n\n User: ",
]


@pytest.fixture(scope="session")
def small_files() -> TokenizerFiles:
    """A byte-level BPE of 400 tokens, multi-byte characters and emoji split over several of them."""
    raw = tokenizers.Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    return TokenizerFiles(
        tokenizer_json=raw.to_str().encode(),
        chat_template=CHATML,
        special_tokens={"bos_token": "<|start|>", "eos_token": "<|end|>"},
        vocab_fingerprint="ab" * 32,
    )


@pytest.fixture(scope="session")
def small(small_files: TokenizerFiles) -> Tokenizer:
    return Tokenizer(small_files)


@pytest.fixture(scope="session")
def small_reference(small_files: TokenizerFiles) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(small_files.tokenizer_json.decode())


@pytest.fixture(scope="session")
def smollm2() -> tuple[Tokenizer, transformers.PreTrainedTokenizerBase]:
    """SmolLM2's tokenizer as a verifier hands it out, and as transformers loads it."""
    folder = ensure_smollm2()
    return Tokenizer(read_tokenizer(folder)), transformers.AutoTokenizer.from_pretrained(str(folder))
