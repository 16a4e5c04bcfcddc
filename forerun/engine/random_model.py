"""Saves models with random weights: drafters that know nothing, and models small enough for tests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from forerun.core.types import TokenizerFiles
from forerun.engine.tokenizer_files import read_tokenizer, vocabulary

HEAD_DIM = 16
LOGIT_SPREAD = 2.0  # standard deviation of the logits: clear favourites, no certainties


def save_random_model(
    folder: Path,
    *,
    like: TokenizerFiles | Path,
    vocab_size: int | None = None,
    layers: int = 2,
    hidden: int = 64,
    seed: int = 0,
    max_context: int = 8192,
) -> None:
    """Write a random Llama with the tokenizer `like` (files, or a model folder) into `folder`, float32.

    `vocab_size`: None takes the tokenizer's. `hidden`: a multiple of 16. Equal arguments write equal weights.
    """
    files = read_tokenizer(like) if isinstance(like, Path) else like
    tokens = vocabulary(files.tokenizer_json)
    config = _config(vocab_size or max(tokens) + 1, layers, hidden, max_context)
    eos = files.special_tokens.get("eos_token")
    config["eos_token_id"] = next((i for i, text in tokens.items() if text == eos), None)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(files.tokenizer_json)
    (folder / "tokenizer_config.json").write_text(json.dumps(files.special_tokens), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(files.chat_template, encoding="utf-8")
    save_file(_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})


def save_tiny_model(
    folder: Path,
    *,
    vocab_size: int = 64,
    seed: int = 0,
    layers: int = 2,
    hidden: int = 64,
    max_context: int = 512,
) -> None:
    """Write a random Llama whose words are `t0 t1 …` and whose last token is `<eos>` into `folder`."""
    vocab = {f"t{i}": i for i in range(vocab_size - 1)} | {"<eos>": vocab_size - 1}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="t0"))  # noqa: S106 - a word, no password
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()  # a text is its words, one after the other
    tokenizer.add_special_tokens(["<eos>"])
    files = TokenizerFiles(
        tokenizer.to_str().encode(),
        "{% for message in messages %}{{ message['content'] }} {% endfor %}",
        {"eos_token": "<eos>"},
    )
    save_random_model(
        folder,
        like=files,
        vocab_size=vocab_size,
        layers=layers,
        hidden=hidden,
        seed=seed,
        max_context=max_context,
    )


def _config(vocab_size: int, layers: int, hidden: int, max_context: int) -> dict[str, object]:
    heads = hidden // HEAD_DIM
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_context,
        "tie_word_embeddings": False,
        "dtype": "float32",
    }


def _weights(config: dict[str, object], seed: int) -> dict[str, torch.Tensor]:
    """Products keep the size of what passes through them; the head spreads logits by LOGIT_SPREAD."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale / math.sqrt(columns))

    vocab, hidden, inner = (int(str(config[k])) for k in ("vocab_size", "hidden_size", "intermediate_size"))
    q, kv = (int(str(config[k])) * HEAD_DIM for k in ("num_attention_heads", "num_key_value_heads"))
    weights = {
        "model.embed_tokens.weight": matrix(vocab, hidden, math.sqrt(hidden)),
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": matrix(vocab, hidden, LOGIT_SPREAD),
    }
    for index in range(int(str(config["num_hidden_layers"]))):
        at = f"model.layers.{index}."
        weights |= {
            at + "input_layernorm.weight": torch.ones(hidden),
            at + "post_attention_layernorm.weight": torch.ones(hidden),
            at + "self_attn.q_proj.weight": matrix(q, hidden, 2.0),
            at + "self_attn.k_proj.weight": matrix(kv, hidden, 2.0),
            at + "self_attn.v_proj.weight": matrix(kv, hidden),
            at + "self_attn.o_proj.weight": matrix(hidden, q),
            at + "mlp.gate_proj.weight": matrix(inner, hidden),
            at + "mlp.up_proj.weight": matrix(inner, hidden),
            at + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    return weights
