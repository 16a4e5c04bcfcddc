"""Tiny models: random ones of each family as transformers saves them, and engines over our own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertLMHeadModel,
    Gemma2Config,
    Gemma2ForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from forerun.engine.load import load_engine
from forerun.engine.paged_engine import PagedEngine

VOCAB = 67  # no multiple of anything
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 72,
    "intermediate_size": 100,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": VOCAB - 1,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
STRETCHES = [1.0, 1.0, 1.5, 2.0, 3.0, 4.5, 6.0, 8.0]  # one a pair of a head of 16
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "short_factor": STRETCHES,
    "long_factor": [2 * stretch for stretch in STRETCHES],
}


def llama(**changes: Any) -> LlamaForCausalLM:
    """A random Llama of SIZES."""
    return LlamaForCausalLM(LlamaConfig(**SIZES | changes))


MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "llama-biases": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    "llama-no-groups": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 6})),
    "llama-one-kv-head": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"num_key_value_heads": 1})),
    "llama-wide-heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"head_dim": 80})),
    "llama3-rope": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)),
    "linear-rope": lambda: LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0})
    ),
    "dynamic-rope": lambda: llama(
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "yarn": lambda: llama(rope_parameters=YARN),
    "yarn-blends-all": lambda: llama(
        rope_parameters=YARN | {"truncate": False, "beta_fast": 4.0, "beta_slow": 0.1}
    ),
    "yarn-scales": lambda: llama(rope_parameters=YARN | {"mscale": 0.7, "mscale_all_dim": 0.3}),
    "yarn-attention": lambda: llama(rope_parameters=YARN | {"attention_factor": 1.3}),
    "longrope": lambda: llama(rope_parameters=LONGROPE),
    "smollm-like": lambda: llama(
        hidden_size=144,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=3,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"} | {"hidden_size": 96})
    ),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=200)),
    "qwen2-tied-yarn": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **{k: v for k, v in SIZES.items() if k != "head_dim"}
            | {"hidden_size": 96, "tie_word_embeddings": True, "rope_parameters": YARN}
        )
    ),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "qwen3-tied-biases": lambda: Qwen3ForCausalLM(
        Qwen3Config(**SIZES, tie_word_embeddings=True, attention_bias=True)
    ),
}
REFUSED: dict[str, Callable[[], PreTrainedModel]] = {
    "bert": lambda: BertLMHeadModel(
        BertConfig(
            vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=64
        )
    ),
    "mamba": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, state_size=8)
    ),
}
OTHERS: dict[str, Callable[[], PreTrainedModel]] = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=512,
            n_embd=48,
            n_layer=2,
            n_head=3,
            bos_token_id=None,
            eos_token_id=VOCAB - 1,
        )
    ),
    "gemma2": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SIZES, query_pre_attn_scalar=16, sliding_window=40, hidden_activation="gelu_pytorch_tanh"
        )
    ),
    "gemma": lambda: GemmaForCausalLM(
        GemmaConfig(**SIZES | {"pad_token_id": 0}, hidden_activation="gelu_pytorch_tanh")
    ),
    "phi": lambda: PhiForCausalLM(
        PhiConfig(
            **{k: v for k, v in SIZES.items() if k != "head_dim"} | {"hidden_size": 96},
            partial_rotary_factor=0.5,
        )
    ),
    "phi3-longrope": lambda: Phi3ForCausalLM(
        Phi3Config(
            **SIZES | {"hidden_size": 96, "pad_token_id": 0},
            original_max_position_embeddings=256,
            rope_parameters=LONGROPE,
        )
    ),
    "gpt-neox": lambda: GPTNeoXForCausalLM(
        GPTNeoXConfig(
            **{k: v for k, v in SIZES.items() if k not in {"head_dim", "num_key_value_heads"}}
            | {"hidden_size": 96}
        )
    ),
    "odd-heads": lambda: LlamaForCausalLM(LlamaConfig(**SIZES | {"head_dim": 20})),
}


def save_words(folder: Path, vocab_size: int) -> None:
    """A tokenizer.json of `vocab_size` words."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(vocab_size)}, unk_token="w0"))  # noqa: S106 - a word
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))


def tiny_engine(
    folder: Path, *, dtype: str = "float32", positions: int = 512, threads: int = 1
) -> PagedEngine:
    """An engine whose pool holds exactly `positions`: 2 layers, 2 KV heads of 16, keys and values."""
    size = {"bfloat16": 2, "float32": 4}[dtype]
    engine, _ = load_engine(
        str(folder), dtype=dtype, threads=threads, pool_bytes=positions * 2 * 2 * 2 * 16 * size
    )
    return engine
