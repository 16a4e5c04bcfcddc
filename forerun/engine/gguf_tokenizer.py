"""Builds tokenizer.json out of what a GGUF file says about its tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

if TYPE_CHECKING:
    from forerun.engine.gguf_model import GgufFields

_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types that are matched before the text is split
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


def write_tokenizer(fields: GgufFields, gguf_file: Path, folder: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja.

    Byte-level BPE with a known splitting rule is built here; any other through transformers.
    """
    split = _splitter(str(fields.get("tokenizer.ggml.pre", "")))
    if fields.get("tokenizer.ggml.model") == "gpt2" and split is not None:
        _byte_level(fields, split).save(str(folder / "tokenizer.json"))
    else:
        from transformers import AutoTokenizer  # noqa: PLC0415 - seconds of imports, rarely needed

        converted = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name)
        converted.backend_tokenizer.save(str(folder / "tokenizer.json"))
    tokens = fields.get("tokenizer.ggml.tokens")
    ids = {role: fields.get(f"tokenizer.ggml.{name}_token_id") for name, role in _ROLES.items()}
    special = {f"{role}_token": tokens[i] for role, i in ids.items() if i is not None}
    (folder / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n", encoding="utf-8")
    template = fields.get("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _splitter(rule: str) -> list[Any] | None:
    """How text is split before BPE, by the rule's name in GGUF; None for a rule not known here."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    known: dict[str, list[Any]] = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), words],
        "gpt-2": [words],
        "qwen2": [pre_tokenizers.Split(Regex(_QWEN2), "isolated"), byte_level],
        "llama-bpe": [pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), byte_level],
    }
    return known.get(rule)


def _byte_level(fields: GgufFields, split: list[Any]) -> Tokenizer:
    tokens: list[str] = fields.get("tokenizer.ggml.tokens")
    kinds: list[int] = fields.get("tokenizer.ggml.token_type")
    rule = fields.get("tokenizer.ggml.pre")
    merges = [tuple(merge.split(" ", 1)) for merge in fields.get("tokenizer.ggml.merges")]
    vocab = {token: i for i, token in enumerate(tokens)}
    strangers = [part for merge in merges for part in (*merge, "".join(merge)) if part not in vocab]
    if strangers:
        raise ValueError(f"merges name {strangers[0]!r}, which is no token")
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule == "llama-bpe"))
    if rule == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    added = [
        AddedToken(token, normalized=False, special=kind == _CONTROL)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_tokens(added)
    if fields.get("tokenizer.ggml.add_bos_token", False):
        bos = fields.get("tokenizer.ggml.bos_token_id")
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return tokenizer
