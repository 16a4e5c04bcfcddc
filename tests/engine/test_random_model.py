"""Random models serve a given vocabulary and are the same every time."""

from pathlib import Path

import numpy as np
import pytest

from forerun.engine.interface import Segment
from forerun.engine.load import load_engine
from forerun.engine.random_model import save_random_model, save_tiny_model


def logits_of(folder: Path) -> np.ndarray:
    engine, _ = load_engine(str(folder), dtype="float32", threads=1, pool_bytes=64 << 20)
    engine.open("s", [1, 2, 3])
    return engine.forward([Segment("s", 0, [1, 2, 3], 3)])[0]


@pytest.mark.parametrize("like", ["folder", "files"])
def test_a_random_model_has_the_vocabulary_of_its_pattern(tiny: Path, tmp_path: Path, like: str) -> None:
    pattern, files = load_engine(str(tiny), threads=1, pool_bytes=1 << 20)
    save_random_model(
        tmp_path, like=tiny if like == "folder" else files, vocab_size=64, layers=1, hidden=32, seed=5
    )
    engine, own = load_engine(str(tmp_path), threads=1, pool_bytes=64 << 20)
    assert own == files
    assert engine.model.vocab_fingerprint == pattern.model.vocab_fingerprint
    assert engine.model.end_token_ids == pattern.model.end_token_ids
    assert engine.model.revision != pattern.model.revision


def test_equal_seeds_give_equal_models_and_others_other_ones(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        save_tiny_model(tmp_path / name, seed=seed)
    a, b, c = (logits_of(tmp_path / name) for name in "abc")
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)


def test_logits_have_favourites_that_depend_on_the_context(tiny: Path) -> None:
    engine, _ = load_engine(str(tiny), dtype="float32", threads=1, pool_bytes=1 << 20)
    text = [int(x) for x in np.random.default_rng(0).integers(0, 63, 200)]
    engine.open("s", text)
    (logits,) = engine.forward([Segment("s", 0, text, 200)])
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    assert 0.1 < probs.max(1).mean() < 0.9
    assert len(set(logits.argmax(1).tolist())) > 20
    same_token = [row for row, token in zip(logits, text, strict=True) if token == text[0]]
    assert len(same_token) > 1
    assert not np.allclose(same_token[0], same_token[1], atol=0.3)
