"""Text to tokens and back, from a model's tokenizer files alone.

Special tokens in what a client wrote:

- A raw prompt (`encode`) is read as transformers reads it: text like `<|im_start|>` becomes that special
  token, and the model's own prefix (a BOS, where it has one) is added. The caller owns the whole prompt and
  may format a chat by hand.
- In a chat (`chat`) only the template places special tokens. Text of one inside a message stays text: it is
  tokenized as ordinary characters, so no message can end its turn or open another's.

The text of an answer is a pure function of its tokens (`visible`): special tokens are skipped, broken UTF-8
becomes U+FFFD, and a character whose bytes are not all there is withheld until they are or the answer ends.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterable, Sequence

import tokenizers

from forerun.core.types import FinishReason, TokenizerFiles
from forerun.errors import FailedPrecondition, InvalidRequest
from gateway.chat_template import ChatTemplate
from gateway.pieces import PieceReader, PieceTable, decoder_of


def utf8(text: str, field: str) -> bytes:
    """The text's bytes. Raises InvalidRequest (BAD_UNICODE) for lone surrogates, which no UTF-8 can carry."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"{field} is not valid Unicode: it contains a lone surrogate", reason="BAD_UNICODE", field=field
        ) from None


class Tokenizer:
    """A model's vocabulary and chat template. Safe to share between sessions; holds no state of any."""

    def __init__(self, files: TokenizerFiles) -> None:
        """Parse the files (0.1-1 s for large vocabularies).

        Raises FailedPrecondition for files that are none.
        """
        content = files.tokenizer_json.decode(errors="replace")
        self._parsed = _parse(content, specials_are_text=False)
        self._literal = _parse(content, specials_are_text=True)
        described = json.loads(content)
        specials = {t["content"] for t in described.get("added_tokens", ()) if t.get("special")}
        specials |= set(files.special_tokens.values())
        vocabulary = self._parsed.get_vocab(with_added_tokens=True)
        # Bytes of text that a token stands for at most.
        self.longest_piece = max(len(text.encode()) for text in vocabulary)
        self._pieces = PieceTable(vocabulary, specials, decoder_of(described.get("decoder")))
        self._special_pattern = re.compile(
            "|".join(re.escape(s) for s in sorted(specials, key=len, reverse=True) if s) or r"(?!)"
        )
        self._template = (
            ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template else None
        )
        self.vocab_fingerprint = files.vocab_fingerprint

    def encode(self, text: str) -> list[int]:
        """Token ids of a raw prompt, as transformers gives them: special tokens in the text are parsed."""
        utf8(text, "prompt")
        return _encode(self._parsed, text, add_special_tokens=True)

    def chat(self, messages: Sequence[tuple[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of (role, content) messages put through the model's template.

        Equal to transformers' `apply_chat_template` unless a message contains the text of a special token,
        which stays text here. Raises InvalidRequest (field "messages") without a template, or when the
        template refuses.
        """
        if self._template is None:
            raise InvalidRequest(
                "the model has no chat template: send a prompt", reason="NO_CHAT_TEMPLATE", field="messages"
            )
        for role, content in messages:
            utf8(role + content, "messages")
        # Digits between private-use characters: no template changes them, no client can guess them.
        nonce = secrets.randbits(64)
        literals: list[str] = []

        def stand_in(match: re.Match[str]) -> str:
            literals.append(match[0])
            return f"\ue000{nonce}:{len(literals) - 1}\ue001"

        masked = [
            (self._special_pattern.sub(stand_in, role), self._special_pattern.sub(stand_in, content))
            for role, content in messages
        ]
        prompt = self._template.render(masked, add_generation_prompt=add_generation_prompt)
        parts = re.split(f"\ue000{nonce}:([0-9]+)\ue001", prompt)
        ids: list[int] = []
        for i, part in enumerate(parts):
            source, text = (self._literal, literals[int(part)]) if i % 2 else (self._parsed, part)
            ids += _encode(source, text, add_special_tokens=False)
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of complete tokens; special ones skipped, broken UTF-8 as U+FFFD."""
        return visible(self, token_ids, FinishReason.STOP, None)

    def token_text(self, token_id: int) -> str:
        """One token by itself, for people: special ones by name, broken UTF-8 as U+FFFD."""
        return self.piece(token_id).decode(errors="replace") or self._parsed.id_to_token(token_id) or ""

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for; b"" for special tokens and ids outside the vocabulary."""
        return self._pieces[token_id]

    def reader(self) -> PieceReader:
        """Reads one answer's tokens in order as bytes."""
        return self._pieces.reader()


def _encode(source: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    # A batch of one: only batches are encoded without holding the interpreter, which others need meanwhile.
    return list(source.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids)


def _parse(content: str, *, specials_are_text: bool) -> tokenizers.Tokenizer:
    try:
        parsed = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises nothing narrower
        raise FailedPrecondition(
            f"tokenizer.json cannot be read: {error}", reason="TOKENIZER_BROKEN"
        ) from error
    parsed.no_truncation()
    parsed.no_padding()
    parsed.encode_special_tokens = specials_are_text
    return parsed


class TextStream:
    """One answer's text as its tokens arrive; O(1) work a token.

    The concatenation of everything returned equals `visible` of everything pushed, however it was split.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._reader = tokenizer.reader()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0

    def push(self, token_ids: Iterable[int], cut: int | None = None) -> str:
        """The text that became visible with these tokens, within the answer's first `cut` characters."""
        read = self._reader.read
        return self._shown(self._decoder.decode(b"".join(read(i) for i in token_ids)), cut)

    def end(self, cut: int | None = None) -> str:
        """What stayed withheld: an incomplete character, as U+FFFD. The stream is over then."""
        return self._shown(self._decoder.decode(b"", final=True), cut)

    def _shown(self, text: str, cut: int | None) -> str:
        if cut is not None:
            text = text[: max(cut - self._num_chars, 0)]
        self._num_chars += len(text)
        return text


def visible(tokenizer: Tokenizer, token_ids: Iterable[int], finish: FinishReason, cut: int | None) -> str:
    """The text of an answer that a client may see, the same on every gateway.

    `token_ids`: the committed answer tokens. `finish` NONE withholds an incomplete last character. `cut`:
    characters shown at most; set when a stop string ended the answer. Possible beginnings of stop strings
    are never among committed tokens (`gateway.stops`).
    """
    stream = TextStream(tokenizer)
    text = stream.push(token_ids, cut)
    return text if finish is FinishReason.NONE else text + stream.end(cut)
