"""The C structures of forward.c, field for field."""

from __future__ import annotations

import ctypes

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int32


class Layer(ctypes.Structure):
    """One layer's packed weights, biases and norms; a null pointer where the model has none."""

    _fields_ = (
        *((name, _POINTER) for name in ("qkv", "attention_out", "gate_up", "down")),
        *((name, _POINTER) for name in ("qkv_bias", "attention_out_bias", "gate_up_bias", "down_bias")),
        *((name, _POINTER) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
    )


class Model(ctypes.Structure):
    """Sizes, weights, KV and workspaces of one model."""

    _fields_ = (
        *((name, _INT) for name in ("type", "amx", "num_layers", "hidden", "num_heads", "num_kv_heads")),
        *((name, _INT) for name in ("head_dim", "intermediate", "vocab_size")),
        *(
            (name, _INT)
            for name in ("hidden_stride", "attention_stride", "intermediate_stride", "qkv_stride")
        ),
        ("norm_eps", ctypes.c_float),
        ("query_scale", ctypes.c_float),
        *(
            (name, _POINTER)
            for name in ("embedding", "final_norm", "head", "layers", "cosines", "sines", "kv")
        ),
        ("num_blocks", ctypes.c_int64),
        *(
            (name, _POINTER)
            for name in ("residual", "qkv", "normed", "attended", "activated", "tiles", "team")
        ),
    )


class Pass(ctypes.Structure):
    """The packed rows of one pass."""

    _fields_ = (
        *((name, _INT) for name in ("num_rows", "num_logits", "table_width", "num_tiles")),
        *(
            (name, _POINTER)
            for name in ("token_ids", "positions", "segments", "tables", "logit_rows", "logits")
        ),
    )
