"""What a model folder's config.json says about a Llama-family model, or a refusal by name."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forerun.errors import InvalidRequest, NotFound

UNSUPPORTED = "UNSUPPORTED_MODEL"  # the reason of a refusal by name
FAMILY = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and how its frequencies are scaled (`kind`: default, linear, llama3, yarn or longrope)."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 8192
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    truncate: bool = True  # yarn: the bounds of the blend are whole pairs
    factors: tuple[float, ...] = ()  # longrope: one for each pair of dimensions
    attention_factor: float = 1.0  # cosines and sines are multiplied by it


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
    said = _rope_parameters(raw)
    kind = str(said.get("rope_type") or said.get("type") or "default")
    theta = float(said.get("rope_theta") or raw.get("rope_theta") or 10000.0)
    if float(said.get("partial_rotary_factor") or 1.0) != 1.0:
        raise unsupported("partial rotary embedding")
    if any(isinstance(value, dict) for value in said.values()):
        raise unsupported("a rotary embedding for each type of layer")
    if kind in (
        "default",
        "dynamic",
    ):  # dynamic scaling begins past max_position_embeddings, the context here
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, factor=float(said["factor"]))
    if kind == "llama3":
        return Rope(
            theta,
            kind,
            factor=float(said["factor"]),
            original_context=_original_context(raw),
            low_freq_factor=float(said["low_freq_factor"]),
            high_freq_factor=float(said["high_freq_factor"]),
        )
    if kind == "yarn":
        return _yarn(theta, raw)
    if kind == "longrope":
        return _longrope(theta, raw)
    raise unsupported(f"rotary embedding scaled by {kind!r}")


def _rope_parameters(raw: dict[str, Any]) -> dict[str, Any]:
    return {**(raw.get("rope_scaling") or {}), **(raw.get("rope_parameters") or {})}


def _original_context(raw: dict[str, Any]) -> int:
    """Positions the model was first trained for, beside or inside the rotary parameters."""
    name = "original_max_position_embeddings"
    return int(raw.get(name) or _rope_parameters(raw).get(name) or raw["max_position_embeddings"])


def _yarn(theta: float, raw: dict[str, Any]) -> Rope:
    """YaRN (arXiv 2309.00071) as transformers reads it."""
    said, original = _rope_parameters(raw), _original_context(raw)
    factor = float(said.get("factor") or raw["max_position_embeddings"] / original)
    attention = said.get("attention_factor")
    scales = [float(said.get(name) or 0) for name in ("mscale", "mscale_all_dim")]
    if attention is None and all(scales):
        attention = _yarn_scale(factor, scales[0]) / _yarn_scale(factor, scales[1])
    return Rope(
        theta,
        "yarn",
        factor=factor,
        original_context=original,
        beta_fast=float(said.get("beta_fast") or 32),
        beta_slow=float(said.get("beta_slow") or 1),
        truncate=bool(said.get("truncate", True)),
        attention_factor=_yarn_scale(factor, 1.0) if attention is None else float(attention),
    )


def _yarn_scale(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(theta: float, raw: dict[str, Any]) -> Rope:
    """LongRoPE's short factors (arXiv 2402.13753): the context ends where its long ones would begin."""
    said, original = _rope_parameters(raw), _original_context(raw)
    factor = float(said.get("factor") or raw["max_position_embeddings"] / original)
    attention = said.get("attention_factor")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(
        theta,
        "longrope",
        factor=factor,
        original_context=original,
        factors=tuple(map(float, said["short_factor"])),
        attention_factor=float(attention),
    )


def rotary_limit(raw: dict[str, Any]) -> int | None:
    """Positions after which a LongRoPE turns to other frequencies for all positions; None where none does.

    Keys computed before would then be wrong, and another session's length would show in this one's logits.
    """
    said = _rope_parameters(raw)
    kinds = [said, *(value for value in said.values() if isinstance(value, dict))]
    turning = [
        int(raw.get("original_max_position_embeddings") or kind["original_max_position_embeddings"])
        for kind in kinds
        if (kind.get("rope_type") or kind.get("type")) == "longrope"
        and list(kind["short_factor"]) != list(kind["long_factor"])
    ]
    return min(turning, default=None)


def _max_context(raw: dict[str, Any]) -> int:
    """A context no longer than the sliding window never slides: within it the window's mask changes nothing."""
    context = min(int(raw["max_position_embeddings"]), rotary_limit(raw) or sys.maxsize)
    window = raw.get("sliding_window")
    slides = raw.get("use_sliding_window", True) if raw["model_type"].startswith("qwen") else True
    layer_types = set(raw.get("layer_types") or ["sliding_attention"])
    if window and slides and "sliding_attention" in layer_types:
        return min(context, int(window))
    return context
