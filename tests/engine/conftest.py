"""Fixtures over tiny models."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers.utils import logging as transformers_logging

from forerun.engine import load
from forerun.engine.native.build import KernelsUnavailableError
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.random_model import save_tiny_model
from tests.engine.tiny_models import MODELS, OTHERS, REFUSED, VOCAB, save_words, tiny_engine


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a random model by its name in `tiny_models`, with logits that spread."""
    transformers_logging.disable_progress_bar()
    folders: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in folders:
            torch.manual_seed(len(name))
            model = (MODELS | OTHERS | REFUSED)[name]()
            with torch.no_grad():
                for label, weights in model.named_parameters():
                    spread = (
                        0.5 if "norm" not in label and weights.dim() == 1 else 3.0 * weights.shape[-1] ** -0.5
                    )
                    if "norm" in label or "ln_" in label:
                        weights.add_(torch.randn_like(weights) * 0.1)
                    else:
                        weights.copy_(torch.randn_like(weights) * spread)
            folders[name] = tmp_path_factory.mktemp(name)
            model.save_pretrained(folders[name])
            save_words(folders[name], VOCAB)
        return folders[name]

    return of


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model of our own."""
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a C compiler."""

    def unavailable() -> None:
        raise KernelsUnavailableError("no C compiler")

    monkeypatch.setattr(load, "load_kernels", unavailable)


@pytest.fixture(params=["bfloat16", "float32"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(tiny: Path, dtype: str) -> PagedEngine:
    """The tiny model, with room for 1024 positions: two contexts."""
    return tiny_engine(tiny, dtype=dtype, positions=1024)


@pytest.fixture(autouse=True, scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Probe results and kernels of these tests stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("FORERUN_DEVICE", "cpu")  # tests/engine/cuda says cuda itself
        yield


@pytest.fixture(scope="session")
def family_smollm_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model large enough that several threads share its passes."""
    folder = tmp_path_factory.mktemp("wide")
    save_tiny_model(folder, vocab_size=2048, hidden=512, layers=4)
    return folder


@pytest.fixture
def tiny_modules(no_kernels: None, tiny: Path) -> PagedEngine:
    """The tiny model through transformers' modules."""
    return tiny_engine(tiny, positions=1024)
