"""The Llama family's arithmetic as torch operations over buffers of fixed place.

Sums of the residual, norms, rotation and attention are float32; products are in the model's dtype.
"""

from __future__ import annotations

import torch
from torch.nn import functional as fn

from forerun.engine.cuda.attention import Attention
from forerun.engine.cuda.device_weights import DeviceLayer, DeviceWeights
from forerun.engine.cuda.pass_inputs import PassInputs
from forerun.engine.kv import BLOCK
from forerun.engine.model_config import ModelConfig
from forerun.engine.rope import rope_tables


class Arithmetic:
    """Weights, KV and buffers of one model; `body` and `head` are what a pass does on the device.

    `inputs` are the pass's; `hidden` (max_rows, hidden) is what `body` leaves, `picked` (max_logits,) int64 the rows of
    it that `head` takes, `logits` (max_logits, vocabulary's width) float32 what it leaves.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: DeviceWeights,
        attention: Attention,
        *,
        num_blocks: int,
        max_rows: int,
        max_logits: int,
    ) -> None:
        device, dtype = weights.embedding.device, weights.embedding.dtype
        self._config = config
        self._weights = weights
        self._attention = attention
        # One block more than the pool knows of: the scratch block.
        shape = (config.num_layers, (num_blocks + 1) * BLOCK, config.num_kv_heads, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._cosines, self._sines = (torch.from_numpy(t).to(device) for t in rope_tables(config))
        self.inputs = PassInputs(
            max_rows=max_rows,
            max_context=config.max_context,
            scratch_block=num_blocks,
            rows_a_group=attention.rows_a_group,
            device=device,
        )
        self.hidden = torch.zeros(max_rows, config.hidden, dtype=dtype, device=device)
        self.picked = torch.zeros(max_logits, dtype=torch.int64, device=device)
        self.logits = torch.zeros(max_logits, config.vocab_width, device=device)

    def body(self, rows: int) -> None:
        """The first `rows` rows' keys and values are in the pool, and `hidden` holds their last layer's, normed."""
        inputs = self.inputs
        residual = self._weights.embedding[inputs.token_ids[:rows]].float()
        at = inputs.positions[:rows]
        rotation = self._cosines[at][:, None], self._sines[at][:, None]
        for index, layer in enumerate(self._weights.layers):
            normed = self._norm(residual, layer.attention_norm)
            residual += self._attend(index, layer, normed, rotation)
            normed = self._norm(residual, layer.mlp_norm)
            residual += _mlp(layer, normed)
        self.hidden[:rows] = self._norm(residual, self._weights.final_norm)

    def head(self, count: int) -> None:
        """`logits` holds those of the first `count` picked rows."""
        hidden = self.hidden[self.picked[:count]]
        self.logits[:count] = fn.linear(hidden, self._weights.head)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed = fn.rms_norm(x, weight.shape, weight, self._config.norm_eps)
        return normed.to(self.hidden.dtype)

    def _attend(
        self,
        index: int,
        layer: DeviceLayer,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        c, rows = self._config, len(x)
        heads = fn.linear(x, layer.qkv, layer.qkv_bias).view(rows, -1, c.head_dim)
        qk, value = heads[:, : -c.num_kv_heads].float(), heads[:, -c.num_kv_heads :]
        if layer.qk_norm is not None:
            qk = fn.rms_norm(qk, (c.head_dim,), None, c.norm_eps) * layer.qk_norm
        qk = _rotated(qk, *rotation).to(x.dtype)
        slots = self.inputs.slots[:rows]
        self.keys[index].index_copy_(0, slots, qk[:, c.num_heads :])
        self.values[index].index_copy_(0, slots, value)
        attended = self._attention.attend(
            qk[:, : c.num_heads], self.keys[index], self.values[index], self.inputs
        )
        return fn.linear(attended, layer.attention_out, layer.attention_out_bias)


def _rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Halves of each head turned by the position's angles; all float32."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cosines - right * sines, right * cosines + left * sines), -1)


def _mlp(layer: DeviceLayer, x: torch.Tensor) -> torch.Tensor:
    gate, up = fn.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
    return fn.linear(fn.silu(gate) * up, layer.down, layer.down_bias)
