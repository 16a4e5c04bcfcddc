"""Logits are transformers' logits, for every family, through the kernels and through transformers' modules."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from forerun.core.types import Exactness
from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.modules_forward import ModulesForward
from forerun.engine.native.build import load_kernels
from forerun.engine.native.forward import NativeForward
from tests.engine.tiny_models import MODELS, OTHERS, VOCAB, save_words

POOL = 8 << 20
TEXT = [int(x) for x in np.random.default_rng(7).integers(0, VOCAB, 150)]


def stock_logits(folder: Path, dtype: torch.dtype = torch.float32) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.inference_mode():
        return model(torch.tensor([TEXT])).logits[0].float().numpy()


def our_logits(folder: Path, dtype: str) -> tuple[np.ndarray, object]:
    """Half of the text in one pass, then three rows at a time."""
    engine, _ = load_engine(str(folder), dtype=dtype, threads=1, pool_bytes=POOL)
    engine.open("s", TEXT)
    half = len(TEXT) // 2
    found = [engine.forward([Segment("s", 0, TEXT[:half], half)])[0]]
    for at in range(half, len(TEXT), 3):
        found += engine.forward([Segment("s", at, TEXT[at : at + 3], 3)])
    assert engine.model.exact is Exactness.BITWISE
    return np.concatenate(found), engine._forward


@pytest.mark.parametrize("name", MODELS)
def test_kernels_compute_transformers_logits_in_fp32(family: Callable[[str], Path], name: str) -> None:
    expected = stock_logits(family(name))
    found, forward = our_logits(family(name), "float32")
    assert isinstance(forward, NativeForward)
    np.testing.assert_allclose(found, expected, atol=2e-4 * expected.std())


@pytest.mark.parametrize("name", MODELS)
def test_kernels_in_bf16_are_nearer_to_fp32_than_transformers_is(
    family: Callable[[str], Path], name: str
) -> None:
    expected = stock_logits(family(name))
    stock_error = np.abs(stock_logits(family(name), torch.bfloat16) - expected).mean()
    found, forward = our_logits(family(name), "bfloat16")
    assert isinstance(forward, NativeForward)
    assert np.abs(found - expected).mean() < 1.1 * stock_error


@pytest.mark.parametrize("name", ["smollm-like", "llama-wide-heads", "qwen3"])
def test_kernels_without_tiles_compute_the_same_in_bf16(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = load_kernels().library
    unit = min(1, library.forerun_bf16_unit())  # the best this processor has but AMX
    monkeypatch.setattr(library, "forerun_bf16_unit", lambda: unit)
    expected = stock_logits(family(name))
    stock_error = np.abs(stock_logits(family(name), torch.bfloat16) - expected).mean()
    found, _ = our_logits(family(name), "bfloat16")
    assert np.abs(found - expected).mean() < 1.1 * stock_error


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_compute_transformers_logits(family: Callable[[str], Path], name: str) -> None:
    expected = stock_logits(family(name))
    found, forward = our_logits(family(name), "float32")
    assert isinstance(forward, ModulesForward)
    np.testing.assert_allclose(found, expected, atol=2e-4 * expected.std())


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures_in_bf16_are_as_near_to_fp32_as_transformers_is(
    family: Callable[[str], Path], name: str
) -> None:
    expected = stock_logits(family(name))
    stock_error = np.abs(stock_logits(family(name), torch.bfloat16) - expected).mean()
    found, forward = our_logits(family(name), "bfloat16")
    assert isinstance(forward, ModulesForward)
    assert np.abs(found - expected).mean() < 1.1 * stock_error


@pytest.mark.parametrize("name", ["longrope", "phi3-longrope"])
def test_a_context_ends_where_rotary_frequencies_would_change(
    family: Callable[[str], Path], name: str
) -> None:
    engine, _ = load_engine(str(family(name)), dtype="float32", threads=1, pool_bytes=POOL)
    assert engine.model.max_context == 256


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("name", ["llama-tied", "qwen3"])
def test_without_a_compiler_transformers_modules_compute(family: Callable[[str], Path], name: str) -> None:
    expected = stock_logits(family(name))
    found, forward = our_logits(family(name), "float32")
    assert isinstance(forward, ModulesForward)
    np.testing.assert_allclose(found, expected, atol=2e-4 * expected.std())


def test_a_shorter_vocabulary_than_the_head_cuts_the_logits(
    family: Callable[[str], Path], tmp_path: Path
) -> None:
    for file in family("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_words(tmp_path, VOCAB - 9)
    engine, _ = load_engine(str(tmp_path), dtype="float32", threads=1, pool_bytes=POOL)
    text = [t for t in TEXT if t < VOCAB - 9]
    engine.open("s", text)
    (found,) = engine.forward([Segment("s", 0, text, 4)])
    whole, _ = load_engine(str(family("llama")), dtype="float32", threads=1, pool_bytes=POOL)
    whole.open("s", text)
    (expected,) = whole.forward([Segment("s", 0, text, 4)])
    assert found.shape == (4, VOCAB - 9)
    np.testing.assert_array_equal(found, expected[:, : VOCAB - 9])


def test_ids_without_a_token_are_never_likely(family: Callable[[str], Path], tmp_path: Path) -> None:
    for file in family("llama").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    del content["model"]["vocab"]["w5"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    engine, _ = load_engine(str(tmp_path), dtype="float32", threads=1, pool_bytes=POOL)
    engine.open("s", TEXT)
    (logits,) = engine.forward([Segment("s", 0, TEXT, 2)])
    assert (logits[:, 5] == -np.inf).all()
    assert np.isfinite(np.delete(logits, 5, axis=1)).all()
