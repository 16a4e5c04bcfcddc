"""The bytes each token stands for, read from tokenizer.json.

A vocabulary is usable when the text of a sequence is the concatenation of its tokens' bytes, as in
byte-level BPE (GPT-2, Llama 3, Qwen, SmolLM) and in SentencePiece vocabularies with byte fallback (Llama 2,
Mistral, Gemma). Then text can be cut, searched and streamed token by token in any chunks, and every gateway
finds the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from forerun.errors import FailedPrecondition

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte, inverted: the printable Latin-1 bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class Decoder:
    """How a token string becomes bytes; `lead`: how many spaces the very beginning of a text loses."""

    byte_level: bool
    replacements: tuple[tuple[str, str], ...] = ()
    byte_fallback: bool = False
    lead: int = 0

    def piece(self, token: str) -> bytes:
        """The bytes of one token string.

        A byte-level token with a character outside the alphabet stands for itself.
        """
        if self.byte_level:
            try:
                return bytes([_ALPHABET[character] for character in token])
            except KeyError:
                return token.encode()
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        match = _BYTE_TOKEN.fullmatch(token) if self.byte_fallback else None
        return bytes([int(match[1], 16)]) if match else token.encode()


def decoder_of(config: Mapping[str, Any] | None) -> Decoder:
    """The decoder that tokenizer.json names.

    Raises FailedPrecondition where pieces cannot simply be concatenated.
    """
    steps = [dict(config or {})]
    if steps[0].get("type") == "Sequence":
        steps = steps[0]["decoders"]
    kinds = [step.get("type") for step in steps]
    if "ByteLevel" in kinds and set(kinds) <= {"ByteLevel", "Fuse"}:
        return Decoder(byte_level=True)
    replacements: list[tuple[str, str]] = []
    lead = 0
    for step, kind in zip(steps, kinds, strict=True):
        if kind == "Replace" and "String" in step["pattern"]:
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
            lead = 0 if step.get("prepend_scheme") == "never" else 1
        elif kind == "Strip" and step["content"] == " " and step["stop"] == 0:
            lead = step["start"]
        elif kind not in ("ByteFallback", "Fuse"):
            raise FailedPrecondition(
                f"tokenizers with the decoder {kind!r} are not supported", reason="TOKENIZER_UNSUPPORTED"
            )
    return Decoder(
        byte_level=False,
        replacements=tuple(replacements),
        byte_fallback="ByteFallback" in kinds,
        lead=lead,
    )


class PieceTable:
    """Token id → bytes; special tokens and ids outside the vocabulary have none, so text skips them."""

    def __init__(self, vocabulary: Mapping[str, int], specials: Iterable[str], decoder: Decoder) -> None:
        skipped = set(specials)
        self.lead = decoder.lead
        self._pieces = {i: b"" if t in skipped else decoder.piece(t) for t, i in vocabulary.items()}

    def __getitem__(self, token_id: int) -> bytes:
        return self._pieces.get(token_id, b"")

    def reader(self) -> PieceReader:
        """A reader at the beginning of a text."""
        return PieceReader(self)


class PieceReader:
    """Reads one text's tokens in order and gives each one's bytes; O(1) a token."""

    def __init__(self, table: PieceTable) -> None:
        self._table = table
        self._lead = table.lead  # spaces the beginning may still lose

    def read(self, token_id: int) -> bytes:
        """The bytes the next token adds to the text."""
        piece = self._table[token_id]
        while self._lead and piece:
            if not piece.startswith(b" "):
                self._lead = 0
                break
            piece = piece[1:]
            self._lead -= 1
        return piece
