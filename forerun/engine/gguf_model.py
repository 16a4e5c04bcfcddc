"""Reads a GGUF file's weights and configuration and writes them as a model folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import save_file

from forerun.engine.gguf_tokenizer import write_tokenizer
from forerun.engine.model_config import unsupported

# GGUF name → transformers name, of a layer and of the rest.
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_REST = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_ROTARY_FACTORS = "rope_freqs.weight"  # what each pair's frequency is divided by
_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


class GgufFields:
    """The file's metadata by key."""

    def __init__(self, reader: GGUFReader) -> None:
        self._fields = {key: field.contents() for key, field in reader.fields.items()}
        self.architecture = str(self._fields["general.architecture"])

    def get(self, key: str, default: Any = None) -> Any:
        """A value by its full key."""
        return self._fields.get(key, default)

    def own(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's name. KeyError if it is missing and there is no default."""
        name = f"{self.architecture}.{key}"
        return self._fields[name] if default is None else self._fields.get(name, default)


def write_folder(gguf_file: Path, folder: Path, progress: Callable[[str, float], None]) -> None:
    """Fill `folder` with what `gguf_file` holds, weights dequantized to bf16. Raises InvalidRequest by name."""
    reader = GGUFReader(gguf_file)
    fields = GgufFields(reader)
    if fields.architecture not in _CLASSES:
        raise unsupported(f"GGUF architecture {fields.architecture!r}; supported: {', '.join(_CLASSES)}")
    weights: dict[str, torch.Tensor] = {}
    rotary_factors: list[float] = []
    for done, tensor in enumerate(reader.tensors):
        if tensor.name == _ROTARY_FACTORS:
            rotary_factors = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32).tolist()
            continue
        name = _tensor_name(tensor.name)
        values = np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        weights[name] = torch.from_numpy(_unpermuted(name, values, fields)).to(torch.bfloat16)
        progress("dequantizing weights", (done + 1) / len(reader.tensors))
    progress("writing weights", 0.0)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(
        fields,
        tied="lm_head.weight" not in weights,
        vocab=len(weights["model.embed_tokens.weight"]),
        rope_scaling=_rope_scaling(fields, rotary_factors),
    )
    _write_json(folder / "config.json", config)
    # As all else here, for whoever may read the cache; safetensors writes for its owner alone.
    (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    _write_json(folder / "generation_config.json", {k: config[k] for k in ("bos_token_id", "eos_token_id")})
    progress("writing tokenizer", 0.0)
    write_tokenizer(fields, gguf_file, folder)
    progress("converted", 1.0)


def _tensor_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk" and parts[2] in _LAYER:
        return f"model.layers.{parts[1]}.{_LAYER[parts[2]]}.{parts[3]}"
    if parts[0] in _REST:
        return f"{_REST[parts[0]]}.{parts[1]}"
    raise unsupported(f"GGUF tensor {name}")


def _unpermuted(name: str, values: np.ndarray[Any, Any], fields: GgufFields) -> np.ndarray[Any, Any]:
    """Llama's q and k rows lie in pairs in GGUF, in halves of a head in transformers."""
    kind = name.rsplit(".", 2)[-2]
    if fields.architecture != "llama" or kind not in ("q_proj", "k_proj"):
        return values
    heads = int(fields.own("attention.head_count" if kind == "q_proj" else "attention.head_count_kv"))
    pairs = values.reshape(heads, len(values) // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _config(
    fields: GgufFields, *, tied: bool, vocab: int, rope_scaling: dict[str, Any] | None
) -> dict[str, Any]:
    heads, hidden = int(fields.own("attention.head_count")), int(fields.own("embedding_length"))
    return {
        "architectures": [_CLASSES[fields.architecture]],
        "model_type": fields.architecture,
        "num_hidden_layers": int(fields.own("block_count")),
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields.own("attention.head_count_kv", heads)),
        "head_dim": int(fields.own("attention.key_length", hidden // heads)),
        "intermediate_size": int(fields.own("feed_forward_length")),
        "vocab_size": vocab,
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{fields.own('attention.layer_norm_rms_epsilon'):.6g}"),
        "tie_word_embeddings": tied,
        "rope_theta": float(fields.own("rope.freq_base", 10000.0)),
        "rope_scaling": rope_scaling,
        "max_position_embeddings": int(fields.own("context_length")),
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "dtype": "bfloat16",
    }


def _rope_scaling(fields: GgufFields, rotary_factors: list[float]) -> dict[str, Any] | None:
    """transformers' words for the file's scaling of rotary frequencies."""
    kind = str(fields.own("rope.scaling.type", "none"))
    factor = float(fields.own("rope.scaling.factor", 1.0))
    context = int(fields.own("context_length"))
    if (
        rotary_factors and kind == "none"
    ):  # equal short and long factors hold at any length, as stored ones do
        return {
            "rope_type": "longrope",
            "factor": 1.0,
            "attention_factor": 1.0,
            "original_max_position_embeddings": context,
            "short_factor": rotary_factors,
            "long_factor": rotary_factors,
        }
    if rotary_factors or kind not in ("none", "linear", "yarn"):
        raise unsupported(
            f"rotary embedding scaled by {kind!r}{' and stored factors' * bool(rotary_factors)}"
        )
    if kind == "yarn":
        return _yarn(fields, factor, context)
    return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None


def _yarn(fields: GgufFields, factor: float, context: int) -> dict[str, Any]:
    for name in ("attn_factor", "yarn_attn_factor", "yarn_ext_factor"):
        if float(fields.own(f"rope.scaling.{name}", 1.0)) != 1.0:
            raise unsupported(f"rotary embedding with {name}")
    return {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": int(
            fields.own("rope.scaling.original_context_length", context / factor)
        ),
        "beta_fast": float(fields.own("rope.scaling.yarn_beta_fast", 32.0)),
        "beta_slow": float(fields.own("rope.scaling.yarn_beta_slow", 1.0)),
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
