"""Engines whose arithmetic is torch's, on the CPUs here and on a GPU where there is one."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from forerun.core.types import Exactness, ModelInfo
from forerun.engine.cuda.load import load_torch_forward
from forerun.engine.model_config import read_config
from forerun.engine.paged_engine import PagedEngine

POOL = 8 << 20
DEVICES = ["cpu", *[pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Threads that wait for each other spin, and many processes test at once."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture
def torch_engine(device: torch.device) -> Callable[..., PagedEngine]:
    """An engine over a folder's model, not probed, on `device`."""

    def load(folder: Path, dtype: str = "float32", pool_bytes: int = POOL) -> PagedEngine:
        config = read_config(folder)
        forward, num_blocks = load_torch_forward(
            folder,
            config,
            vocab_size=config.vocab_width,
            dtype=getattr(torch, dtype),
            device=device,
            pool_bytes=pool_bytes,
            progress=lambda *_: None,
        )
        model = ModelInfo(
            "m", "r", "f", config.vocab_width, config.max_context, f"{device}", Exactness.NUMERIC, ()
        )
        return PagedEngine(model, forward, num_blocks)

    return load
