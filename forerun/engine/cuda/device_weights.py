"""A model's weights on a device, read from a folder or made at random where they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from forerun.engine.model_config import ModelConfig, unsupported
from forerun.engine.weights import LayerWeights, open_checkpoint

LOGIT_SPREAD = 2.0  # of random weights: standard deviation of the logits


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """One layer. Products are (out, in) and, like their biases, in the model's dtype; norms are float32.

    `qk_norm`: (heads + KV heads, head_dim), each head's own row.
    """

    qkv: torch.Tensor
    attention_out: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    attention_out_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    qk_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """All of a model. `head` is (vocabulary's width, hidden); it may be the embedding itself."""

    embedding: torch.Tensor
    head: torch.Tensor
    final_norm: torch.Tensor
    layers: tuple[DeviceLayer, ...]

    @property
    def product_bytes(self) -> int:
        """Bytes that one pass reads at least: every product's weight once."""
        products = [self.head]
        for layer in self.layers:
            products += [layer.qkv, layer.attention_out, layer.gate_up, layer.down]
        return sum(weight.numel() * weight.itemsize for weight in products)


def read_weights(
    folder: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
) -> DeviceWeights:
    """The folder's weights on `device`, a layer at a time. Raises NotFound or InvalidRequest as the readers do."""
    with open_checkpoint(folder, config, dtype) as checkpoint:
        embedding = checkpoint.matrix("model.embed_tokens.weight", config.vocab_width, config.hidden)
        embedding = _copied(embedding, device)
        head = checkpoint.head()
        final_norm = _copied(checkpoint.vector("model.norm.weight", config.hidden), device)
        layers = []
        for index in range(config.num_layers):
            layers.append(_layer(checkpoint.layer(index), config, dtype, device))
            progress((index + 1) / config.num_layers)
        checkpoint.check_all_read()
        return DeviceWeights(
            embedding, embedding if head is None else _copied(head, device), final_norm, tuple(layers)
        )


def random_weights(
    config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0
) -> DeviceWeights:
    """Weights drawn on `device`: what passes through a product keeps its size, logits spread by LOGIT_SPREAD."""
    generator = torch.Generator(device).manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.empty(rows, columns, dtype=dtype, device=device)
        return drawn.normal_(0.0, scale / math.sqrt(columns), generator=generator)

    def ones() -> torch.Tensor:
        return torch.ones(config.hidden, device=device)

    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    embedding = matrix(config.vocab_width, config.hidden, math.sqrt(config.hidden))
    head = matrix(config.vocab_width, config.hidden, LOGIT_SPREAD)
    layers = tuple(
        DeviceLayer(
            qkv=matrix(q + 2 * kv, config.hidden),
            attention_out=matrix(config.hidden, q),
            gate_up=matrix(2 * config.intermediate, config.hidden),
            down=matrix(config.hidden, config.intermediate),
            attention_norm=ones(),
            mlp_norm=ones(),
        )
        for _ in range(config.num_layers)
    )
    return DeviceWeights(embedding, head, ones(), layers)


def _layer(read: LayerWeights, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DeviceLayer:
    def bias(vector: torch.Tensor | None) -> torch.Tensor | None:
        return None if vector is None else _copied(vector.to(dtype), device)

    if (read.gate_bias is None) != (read.up_bias is None):
        raise unsupported("a bias on one of gate and up only")
    gate_up_bias = (
        None if read.gate_bias is None or read.up_bias is None else torch.cat([read.gate_bias, read.up_bias])
    )
    return DeviceLayer(
        qkv=_copied(read.qkv, device),
        attention_out=_copied(read.attention_out, device),
        gate_up=torch.cat([_copied(read.gate, device), _copied(read.up, device)]),
        down=_copied(read.down, device),
        attention_norm=_copied(read.attention_norm, device),
        mlp_norm=_copied(read.mlp_norm, device),
        qkv_bias=bias(read.qkv_bias),
        attention_out_bias=bias(read.attention_out_bias),
        gate_up_bias=bias(gate_up_bias),
        down_bias=bias(read.down_bias),
        qk_norm=_qk_norm(read, config, device),
    )


def _qk_norm(read: LayerWeights, config: ModelConfig, device: torch.device) -> torch.Tensor | None:
    if read.q_norm is None and read.k_norm is None:
        return None
    if read.q_norm is None or read.k_norm is None:
        raise unsupported("a norm on one of q and k only")
    rows = [read.q_norm] * config.num_heads + [read.k_norm] * config.num_kv_heads
    return torch.stack(rows).to(device)


def _copied(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy on `device`: what was read may be a view of a file that changes."""
    return tensor.to(device, copy=True)
