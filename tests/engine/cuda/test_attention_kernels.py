"""Triton's kernels compute what plain torch does: compiled where there is a GPU, else interpreted.

To interpret them: pip install triton, and TRITON_INTERPRET=1 in the environment.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from forerun.engine.cuda.attention import GatheredAttention
from forerun.engine.cuda.attention_check import difference, sample_rows
from forerun.engine.cuda.pass_inputs import PassInputs
from forerun.engine.model_config import ModelConfig, Rope
from forerun.engine.rows import Rows

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("no GPU, and TRITON_INTERPRET is not 1", allow_module_level=True)
kernels = pytest.importorskip("forerun.engine.cuda.triton_attention", reason="Triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
pytestmark = pytest.mark.gpu if DEVICE.type == "cuda" else []
# Triton's interpreter multiplies no bf16.
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]


def config(heads: int = 4, kv_heads: int = 2, head_dim: int = 16, max_context: int = 1024) -> ModelConfig:
    return ModelConfig(
        "llama", 1, heads * head_dim, heads, kv_heads, head_dim, 64, 64, 1e-6, False, Rope(1e4), max_context
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (7, 1, 64), (3, 3, 80), (40, 1, 32)])
@pytest.mark.parametrize("max_context", [24, 1024, 16384])
def test_kernels_compute_what_plain_torch_does(
    dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, max_context: int
) -> None:
    shapes = config(heads, kv_heads, head_dim, max_context)
    attention = kernels.TritonAttention(shapes, 32, DEVICE)
    apart = difference(attention, GatheredAttention(), shapes, dtype, DEVICE)
    assert apart <= (2e-6 if dtype == torch.float32 else 2e-2)


def attended(rows: Rows, chosen: np.ndarray, bucket: int, spoil: bool) -> np.ndarray:
    """Attention of the chosen rows of a pass, padded to `bucket`."""
    shapes = config()
    attention = kernels.TritonAttention(shapes, bucket, DEVICE)
    inputs = PassInputs(
        max_rows=bucket,
        max_context=shapes.max_context,
        scratch_block=int(rows.tables.max()) + 1,
        rows_a_group=attention.rows_a_group,
        device=DEVICE,
    )
    part = Rows(
        rows.token_ids[chosen],
        rows.positions[chosen],
        rows.segments[chosen],
        rows.tables,
        chosen.astype(np.int32),
    )
    inputs.fill(part)
    generator = torch.Generator().manual_seed(1)
    slots = (int(rows.tables.max()) + 2) * 16
    keys, values = (torch.randn(slots, 2, 16, generator=generator) for _ in range(2))
    query = torch.randn(len(rows.positions), 4, 16, generator=generator)[chosen]
    if spoil:  # what no row sees, the end of the longest session's last block
        unseen = int(rows.tables[0, (700 - 1) // 16]) * 16 + 700 % 16
        keys[unseen : unseen + 4] = values[unseen : unseen + 4] = float("nan")
    padded = torch.zeros(bucket, 4, 16)
    padded[: len(chosen)] = query
    found = attention.attend(padded.to(DEVICE), keys.to(DEVICE), values.to(DEVICE), inputs)
    return found[: len(chosen)].cpu().numpy()


@pytest.fixture
def rows() -> Rows:
    return sample_rows(1024)


@pytest.mark.parametrize(
    "pick",
    [
        pytest.param(lambda r: np.arange(1), id="one row"),
        pytest.param(lambda r: np.arange(3, 9), id="two sessions"),
        pytest.param(lambda r: np.flatnonzero(r.segments == 2), id="the last session"),
        pytest.param(lambda r: np.arange(0, len(r.positions), 3), id="every third"),
    ],
)
def test_neighbours_and_padding_change_no_bit_of_a_row(rows: Rows, pick: Callable[[Any], np.ndarray]) -> None:
    every = np.arange(len(rows.positions))
    expected = attended(rows, every, 32, spoil=False)
    chosen = pick(rows)
    assert attended(rows, chosen, 24, spoil=False).tobytes() == expected[chosen].tobytes()


def test_what_no_row_sees_may_be_anything(rows: Rows) -> None:
    every = np.arange(len(rows.positions))
    assert attended(rows, every, 32, spoil=True).tobytes() == attended(rows, every, 32, spoil=False).tobytes()
