"""The one validator: every door checks a request's fields here, so none lets through what another refuses."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from forerun.core.types import Sampling
from forerun.errors import InvalidRequest

MAX_TEMPERATURE = 100.0
MAX_TOP_K = 2**31 - 1
MAX_STOP = 16  # strings a request may stop at
MAX_STOP_CHARS = 1024  # in one of them; that much text may have to be held back
MAX_ID_CHARS = 128
MAX_SEED = 2**64 - 1
MAX_DRAFT_TOKENS = 1024  # in one message: no window is larger
MAX_LAW_TOKENS = 1024  # of one drafted token; checking a law of a million takes a second from everybody

# Ids become Redis keys inside a {hash tag}, header values and file names.
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def check_sampling(s: Sampling) -> None:
    """Every parameter is a finite number within its range, else InvalidRequest names it."""
    _check_number(s.temperature, "sampling.temperature", 0, MAX_TEMPERATURE)
    _check_integer(s.top_k, "sampling.top_k", 0, MAX_TOP_K)
    _check_number(s.top_p, "sampling.top_p", 0, 1)
    if s.top_p == 0:
        raise InvalidRequest("top_p must be above 0", field="sampling.top_p", reason="OUT_OF_RANGE")
    _check_number(s.min_p, "sampling.min_p", 0, 1)


def check_seed(seed: int | None) -> None:
    """The seed is absent or fits 64 bits."""
    if seed is not None:
        _check_integer(seed, "seed", 0, MAX_SEED)


def check_token_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """At least one token, all of them of the vocabulary."""
    if len(token_ids) == 0:
        raise InvalidRequest(f"{field} must not be empty", field=field, reason="EMPTY")
    try:
        ids = np.asarray(token_ids, dtype=np.int64)
    except (OverflowError, ValueError, TypeError):
        raise InvalidRequest(f"{field} must be token ids", field=field, reason="TOKEN_OUT_OF_RANGE") from None
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        wrong = int(ids[int(np.argmax(outside))])
        raise InvalidRequest(
            f"token id {wrong} is not in the vocabulary of {vocab_size}",
            field=field,
            reason="TOKEN_OUT_OF_RANGE",
        )


def check_lengths(prompt_length: int, max_tokens: int, max_context: int) -> None:
    """A prompt of at least one token and `max_tokens` ≥ 1 more fit the context."""
    if prompt_length < 1:
        raise InvalidRequest("the prompt is empty", field="prompt", reason="EMPTY")
    _check_integer(max_tokens, "max_tokens", 1, 2**32 - 1)
    if prompt_length >= max_context:
        raise InvalidRequest(
            f"the prompt has {prompt_length} tokens; no room is left in the context of {max_context}",
            field="prompt",
            reason="CONTEXT_EXCEEDED",
        )
    if prompt_length + max_tokens > max_context:
        raise InvalidRequest(
            f"{prompt_length} prompt tokens and max_tokens {max_tokens} exceed the context of {max_context}",
            field="max_tokens",
            reason="CONTEXT_EXCEEDED",
        )


def check_stop(stop: Sequence[str]) -> None:
    """At most MAX_STOP strings, none empty, none longer than MAX_STOP_CHARS."""
    if isinstance(stop, str):
        raise InvalidRequest("stop must be a list of strings", field="stop", reason="MALFORMED")
    if len(stop) > MAX_STOP:
        raise InvalidRequest(f"{len(stop)} stop strings; at most {MAX_STOP}", field="stop", reason="TOO_MANY")
    for text in stop:
        if not isinstance(text, str):
            raise InvalidRequest("a stop string must be text", field="stop", reason="MALFORMED")
        if not 1 <= len(text) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"a stop string must have 1 to {MAX_STOP_CHARS} characters",
                field="stop",
                reason="OUT_OF_RANGE",
            )


def check_session_id(session_id: str) -> None:
    """1 to MAX_ID_CHARS of letters, digits and `._:-`, the first a letter or digit."""
    _check_id(session_id, "session_id")


def check_request_id(request_id: str) -> None:
    """The rule of session ids."""
    _check_id(request_id, "request_id")


def _check_id(value: str, field: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_ID_CHARS or not _ID.fullmatch(value):
        raise InvalidRequest(
            f"{field} must be 1 to {MAX_ID_CHARS} letters, digits or ._:- and start with a letter or digit",
            field=field,
            reason="MALFORMED",
        )


def _check_number(value: float, field: str, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{field} must be a number", field=field, reason="MALFORMED")
    # The range first: comparing needs no conversion, which a huge int would not survive.
    if not low <= value <= high or not math.isfinite(value):
        raise InvalidRequest(
            f"{field} must be between {low:g} and {high:g}", field=field, reason="OUT_OF_RANGE"
        )


def _check_integer(value: int, field: str, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field} must be an integer", field=field, reason="MALFORMED")
    if not low <= value <= high:
        raise InvalidRequest(f"{field} must be between {low} and {high}", field=field, reason="OUT_OF_RANGE")
