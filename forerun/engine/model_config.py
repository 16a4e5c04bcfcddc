"""What a model folder's config.json says about a Llama-family model, or a refusal by name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import InvalidRequest, NotFound

UNSUPPORTED = "UNSUPPORTED_MODEL"  # the reason of a refusal by name
FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and how its frequencies are scaled (`kind`: default, linear or llama3)."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one model. `max_context`: positions it was made for."""

    model_type: str
    num_layers: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate: int
    vocab_width: int  # rows of embedding and head; may exceed the vocabulary
    norm_eps: float
    tied_head: bool
    rope: Rope
    max_context: int


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if there is no such file. Raises InvalidRequest for a broken one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            f"{path} is not readable JSON: {error}", field="model", reason="BROKEN_MODEL"
        ) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{path} holds no JSON object", field="model", reason="BROKEN_MODEL")
    return value


def read_config(folder: Path) -> ModelConfig:
    """The model's configuration. Raises NotFound without a config.json, InvalidRequest for what is not supported."""
    raw = read_json(folder / "config.json")
    if not raw:
        raise NotFound(f"no model in {folder}: config.json is missing", reason="NO_MODEL")
    model_type = str(raw.get("model_type", ""))
    if model_type not in FAMILY:
        raise unsupported(f"architecture {model_type or 'unknown'!r}; supported: {', '.join(FAMILY)}")
    try:
        return _family_config(model_type, raw)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(
            f"{folder / 'config.json'}: missing or malformed field: {error}",
            field="model",
            reason="BROKEN_MODEL",
        ) from error


def unsupported(what: str) -> InvalidRequest:
    """The refusal of a model feature, by name."""
    return InvalidRequest(f"this model is not supported: {what}", field="model", reason=UNSUPPORTED)


def _family_config(model_type: str, raw: dict[str, Any]) -> ModelConfig:
    heads, hidden = int(raw["num_attention_heads"]), int(raw["hidden_size"])
    kv_heads = int(raw.get("num_key_value_heads") or heads)
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise unsupported(f"activation {raw['hidden_act']!r}")
    if float(raw.get("partial_rotary_factor") or 1.0) != 1.0:
        raise unsupported("partial rotary embedding")
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"{heads} heads over {kv_heads} KV heads")
    return ModelConfig(
        model_type=model_type,
        num_layers=int(raw["num_hidden_layers"]),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate=int(raw["intermediate_size"]),
        vocab_width=int(raw["vocab_size"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tied_head=bool(raw.get("tie_word_embeddings", False)),
        rope=_rope(raw),
        max_context=_max_context(raw),
    )


def _rope(raw: dict[str, Any]) -> Rope:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    said = {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}
    kind = str(said.get("rope_type") or said.get("type") or "default")
    theta = float(said.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if float(said.get("partial_rotary_factor") or 1.0) != 1.0:
        raise unsupported("partial rotary embedding")
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, factor=float(said["factor"]))
    if kind == "llama3":
        return Rope(
            theta,
            kind,
            factor=float(said["factor"]),
            low_freq_factor=float(said["low_freq_factor"]),
            high_freq_factor=float(said["high_freq_factor"]),
            original_context=int(said["original_max_position_embeddings"]),
        )
    raise unsupported(f"rotary embedding scaled by {kind!r}")


def _max_context(raw: dict[str, Any]) -> int:
    """A context no longer than the sliding window never slides: within it the window's mask changes nothing."""
    context = int(raw["max_position_embeddings"])
    window = raw.get("sliding_window")
    slides = raw.get("use_sliding_window", True) if raw["model_type"].startswith("qwen") else True
    layer_types = set(raw.get("layer_types") or ["sliding_attention"])
    if window and slides and "sliding_attention" in layer_types:
        return min(context, int(window))
    return context
