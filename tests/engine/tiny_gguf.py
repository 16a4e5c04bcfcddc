"""A tiny model's folder as the GGUF file that llama.cpp would make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from safetensors.torch import load_file

NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LETTERS = [*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVW0123456789Ġ"]
TOKENS = [*LETTERS, "ab", "Ġa", "<|user|>", "<|end|>"]


def gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, index, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)
        return f"blk.{index}.{NAMES[module]}.{kind}"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}.get(
        name, "output.weight"
    )


def paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows: first and second half of a head interleaved."""
    rows = weight.shape[0] // heads
    order = [
        head * rows + half * rows // 2 + i
        for head in range(heads)
        for i in range(rows // 2)
        for half in (0, 1)
    ]
    return np.ascontiguousarray(weight[order])


def write_gguf(
    folder: Path,
    path: Path,
    *,
    architecture: str = "llama",
    pre: str = "smollm",
    say: Callable[[GGUFWriter], None] = lambda _: None,
) -> None:
    """`say` adds what else the file is to hold."""
    writer = GGUFWriter(path, architecture)
    config = json.loads((folder / "config.json").read_text())
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(63)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    say(writer)
    for name, weight in load_file(folder / "model.safetensors").items():
        values = weight.numpy()
        if "q_proj" in name or "k_proj" in name:
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            values = paired(values, heads)
        writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
