"""Reads a Llama-family model's tensors out of safetensors files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from forerun.engine.model_config import ModelConfig, read_json, unsupported
from forerun.errors import InvalidRequest, NotFound

# Computed from the configuration, stored by older files.
_DERIVED = ("rotary_emb.inv_freq",)


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Products are (out, in) in the model's dtype, q, k, v and gate, up stacked; the rest is float32."""

    qkv: torch.Tensor
    attention_out: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    attention_norm: torch.Tensor
    mlp_norm: torch.Tensor
    qkv_bias: torch.Tensor | None
    attention_out_bias: torch.Tensor | None
    gate_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


class Checkpoint:
    """Tensors by name, each read once, checked against the shape the configuration implies."""

    def __init__(self, tensors: dict[str, Any], config: ModelConfig, dtype: torch.dtype) -> None:
        self._files = tensors
        self._unread = {name for name in tensors if not name.endswith(_DERIVED)}
        self._config = config
        self._dtype = dtype

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """A product's weight in the model's dtype."""
        return self._read(name, (rows, columns)).to(self._dtype)

    def vector(self, name: str, size: int) -> torch.Tensor:
        """A norm's weight or a bias, float32."""
        return self._read(name, (size,)).float()

    def optional(self, name: str, size: int) -> torch.Tensor | None:
        """The vector, or None if the model has none of this name."""
        return self.vector(name, size) if name in self._files else None

    def has(self, name: str) -> bool:
        """Whether the files hold this tensor."""
        return name in self._files

    def layer(self, index: int) -> LayerWeights:
        """One layer's weights."""
        c, at = self._config, f"model.layers.{index}."
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        attention, mlp = at + "self_attn.", at + "mlp."
        return LayerWeights(
            qkv=torch.cat(
                [
                    self.matrix(f"{attention}{n}_proj.weight", size, c.hidden)
                    for n, size in (("q", q), ("k", kv), ("v", kv))
                ]
            ),
            attention_out=self.matrix(attention + "o_proj.weight", c.hidden, q),
            gate=self.matrix(mlp + "gate_proj.weight", c.intermediate, c.hidden),
            up=self.matrix(mlp + "up_proj.weight", c.intermediate, c.hidden),
            down=self.matrix(mlp + "down_proj.weight", c.hidden, c.intermediate),
            attention_norm=self.vector(at + "input_layernorm.weight", c.hidden),
            mlp_norm=self.vector(at + "post_attention_layernorm.weight", c.hidden),
            qkv_bias=self._qkv_bias(attention, q, kv),
            attention_out_bias=self.optional(attention + "o_proj.bias", c.hidden),
            gate_bias=self.optional(mlp + "gate_proj.bias", c.intermediate),
            up_bias=self.optional(mlp + "up_proj.bias", c.intermediate),
            down_bias=self.optional(mlp + "down_proj.bias", c.hidden),
            q_norm=self.optional(attention + "q_norm.weight", c.head_dim),
            k_norm=self.optional(attention + "k_norm.weight", c.head_dim),
        )

    def head(self) -> torch.Tensor | None:
        """The head's weight, None if it is the embedding."""
        if not self.has("lm_head.weight"):
            if not self._config.tied_head:
                raise InvalidRequest("lm_head.weight is missing", field="model", reason="BROKEN_MODEL")
            return None
        head = self.matrix("lm_head.weight", self._config.vocab_width, self._config.hidden)
        return None if self._config.tied_head else head

    def check_all_read(self) -> None:
        """Refuse a model that has tensors this forward does not know."""
        if self._unread:
            raise unsupported(f"unexpected tensor {min(self._unread)}")

    def _qkv_bias(self, attention: str, q: int, kv: int) -> torch.Tensor | None:
        parts = [
            self.optional(f"{attention}{n}_proj.bias", size) for n, size in (("q", q), ("k", kv), ("v", kv))
        ]
        present = [part for part in parts if part is not None]
        if present and len(present) != len(parts):
            raise unsupported(f"{attention}: a bias on some of q, k, v only")
        return torch.cat(present) if present else None

    def _read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if name not in self._files:
            raise InvalidRequest(f"tensor {name} is missing", field="model", reason="BROKEN_MODEL")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        self._unread.discard(name)
        if tuple(tensor.shape) != shape or not tensor.is_floating_point():
            raise InvalidRequest(
                f"tensor {name} is {tensor.dtype} {tuple(tensor.shape)}, expected floating point {shape}",
                field="model",
                reason="BROKEN_MODEL",
            )
        return tensor


@contextmanager
def open_checkpoint(folder: Path, config: ModelConfig, dtype: torch.dtype) -> Iterator[Checkpoint]:
    """The tensors of all safetensors files of a folder. Raises NotFound without any, InvalidRequest for broken ones."""
    with ExitStack() as stack:
        tensors: dict[str, Any] = {}
        for path in weight_files(folder):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
                tensors |= dict.fromkeys(file.keys(), file)
            except (SafetensorError, OSError) as error:
                raise InvalidRequest(
                    f"{path} is broken: {error}", field="model", reason="BROKEN_MODEL"
                ) from error
        yield Checkpoint(tensors, config, dtype)


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model, by its index if it has one."""
    index = read_json(folder / "model.safetensors.index.json")
    names = sorted(set(index.get("weight_map", {}).values())) or ["model.safetensors"]
    paths = [folder / name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise NotFound(
            f"no weights in {folder}: {missing[0]} is missing (only safetensors are read)", reason="NO_MODEL"
        )
    return paths


def revision(folder: Path) -> str:
    """SHA-256 over configuration and weights, hex; a large file's hash is kept beside it while it does not change."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        digest.update(_file_hash(path).encode())
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    stat = path.stat()
    state = [stat.st_size, stat.st_mtime_ns]
    kept_path = path.with_suffix(".sha256.json")
    kept = read_json(kept_path)
    if kept.get("state") == state:
        return str(kept["sha256"])
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        kept_path.write_text(json.dumps({"state": state, "sha256": found}), encoding="utf-8")
    except OSError:
        return found  # a folder that is not ours to write: hash again next time
    return found
