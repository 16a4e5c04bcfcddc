"""A model folder's tokenizer, in the form it travels in."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from forerun.core.types import TokenizerFiles
from forerun.engine.model_config import read_json
from forerun.errors import InvalidRequest, NotFound

_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """tokenizer.json, chat template and special tokens by role. Raises NotFound without a tokenizer.json."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise NotFound(f"no tokenizer in {folder}: tokenizer.json is missing", reason="NO_TOKENIZER")
    config = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    special = {role: text for role in _ROLES if (text := _content(config.get(role)))}
    content = path.read_bytes()
    return TokenizerFiles(
        content, _chat_template(folder, config), special, vocab_fingerprint(vocabulary(content))
    )


def vocabulary(tokenizer_json: bytes) -> dict[int, str]:
    """Token string of each id, added tokens included. Raises InvalidRequest for what is no tokenizer.json."""
    try:
        content = json.loads(tokenizer_json)
        vocab = content["model"]["vocab"]
        # Unigram models list [token, score] pairs in order of id; the others map tokens to ids.
        pairs = (
            enumerate(t for t, _ in vocab) if isinstance(vocab, list) else ((i, t) for t, i in vocab.items())
        )
        tokens = dict(pairs)
        tokens.update({added["id"]: added["content"] for added in content.get("added_tokens", [])})
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"tokenizer.json is broken: {error}", field="model", reason="BROKEN_MODEL"
        ) from error
    return tokens


def vocab_fingerprint(tokens: dict[int, str]) -> str:
    """SHA-256 over sorted (id, token string), lower-case hex; the logits' width plays no part."""
    digest = hashlib.sha256()
    for token_id in sorted(tokens):
        text = tokens[token_id].encode("utf-8", "surrogatepass")
        digest.update(token_id.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text)
    return digest.hexdigest()


def end_token_ids(folder: Path, files: TokenizerFiles, tokens: dict[int, str]) -> tuple[int, ...]:
    """Ids that end a text: of generation_config.json, config.json and the tokenizer's eos, ascending."""
    found = set()
    for name in ("generation_config.json", "config.json"):
        said = read_json(folder / name).get("eos_token_id")
        found.update(said if isinstance(said, list) else [said] if said is not None else [])
    eos = files.special_tokens.get("eos_token")
    found.update(i for i, text in tokens.items() if text == eos)
    return tuple(sorted(i for i in found if i in tokens))


def _chat_template(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    said = config.get("chat_template") or read_json(folder / "chat_template.json").get("chat_template") or ""
    if isinstance(said, list):  # several by name
        named = {entry["name"]: entry["template"] for entry in said}
        return str(named.get("default", ""))
    return str(said)


def _content(token: Any) -> str:
    """A special token is stored as its text or as an object with its text."""
    if isinstance(token, dict):
        return str(token.get("content", ""))
    return token if isinstance(token, str) else ""
