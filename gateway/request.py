"""A request for an answer, as both doors understand it, and the one validation of it."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field, replace

from forerun.core.limits import (
    check_lengths,
    check_request_id,
    check_sampling,
    check_seed,
    check_session_id,
    check_stop,
    check_token_ids,
)
from forerun.core.noise import noise_key
from forerun.core.types import Acceptance, Mode, ModelInfo, Sampling
from forerun.errors import InvalidRequest
from gateway.store.session import Turn
from gateway.text import Tokenizer, utf8

DEFAULT_MAX_TOKENS = 256
ROLES = ("system", "developer", "user", "assistant")
# OpenAI renamed the role; models still know it by the old name.
_TEMPLATE_ROLES = {"developer": "system"}
# A drawn seed survives every JSON reader: below 2^53.
_DRAWN_SEED_BITS = 53


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What a client asked for; exactly one of `prompt`, `messages`, `token_ids` is set."""

    prompt: str | None = None
    messages: tuple[tuple[str, str], ...] | None = None  # (role, content), oldest first
    token_ids: tuple[int, ...] | None = None
    request_id: str = ""
    session_id: str = ""  # adds a turn to this conversation
    model: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    acceptance: Acceptance = Acceptance.AUTO
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    no_draft: bool = False
    ignore_end_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """A valid request: the whole prompt in tokens, and what a session stores of the rest."""

    token_ids: tuple[int, ...]
    turn: Turn


def check(request: GenerationRequest) -> None:
    """Refuse (InvalidRequest) what is wrong whichever model is asked."""
    given = [name for name in ("prompt", "messages", "token_ids") if getattr(request, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"exactly one of prompt, messages and token_ids must be set, not {' and '.join(given) or 'none'}",
            reason="BAD_INPUT",
            field=given[1] if given else "prompt",
        )
    if not getattr(request, given[0]):
        raise InvalidRequest(f"{given[0]} must not be empty", reason="EMPTY", field=given[0])
    for i, (role, _) in enumerate(request.messages or ()):
        if role not in ROLES:
            raise InvalidRequest(
                f"{role!r} is not one of {', '.join(ROLES)}", reason="BAD_ROLE", field=f"messages[{i}].role"
            )
    if request.request_id:
        check_request_id(request.request_id)
    if request.session_id:
        check_session_id(request.session_id)
    check_sampling(request.sampling)
    check_seed(request.seed)
    check_stop(request.stop)
    for text in request.stop:
        utf8(text, "stop")


def digest(request: GenerationRequest) -> str:
    """The same for equal requests only, on every gateway.

    The ids are no part of it: with them a session is found, with this it is recognised.
    """
    fields = asdict(replace(request, request_id="", session_id=""))
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def validate(
    request: GenerationRequest,
    model: ModelInfo,
    tokenizer: Tokenizer,
    *,
    history: tuple[int, ...] = (),
    acceptance: Acceptance = Acceptance.AUTO,
) -> Prepared:
    """The request ready to run on `model`. Raises InvalidRequest naming the field at fault.

    `history`: the conversation so far; a prompt or token ids continue it, messages are the whole of it.
    `acceptance`: the server's setting, for requests that leave it open.
    """
    check(request)
    _check_fits(request, model, tokenizer)
    token_ids = _tokens(request, model, tokenizer, history)
    max_tokens = request.max_tokens
    if max_tokens is None:
        max_tokens = max(1, min(DEFAULT_MAX_TOKENS, model.max_context - len(token_ids)))
    check_lengths(len(token_ids), max_tokens, model.max_context)
    mode, seed = _mode(request, acceptance)
    turn = Turn(
        model=model,
        sampling=request.sampling,
        mode=mode,
        seed=seed,
        noise_key=b"" if seed is None else noise_key(seed, token_ids),
        prompt_length=len(token_ids),
        max_tokens=max_tokens,
        stop=request.stop,
        no_draft=request.no_draft,
        ignore_end_tokens=request.ignore_end_tokens,
        request_id=request.request_id,
        request_digest=digest(request) if request.request_id else "",
    )
    return Prepared(token_ids, turn)


def _check_fits(request: GenerationRequest, model: ModelInfo, tokenizer: Tokenizer) -> None:
    """Refuse what cannot fit the context however few tokens it makes, before it is tokenized."""
    field_name, text = "prompt", request.prompt or ""
    if request.messages is not None:
        field_name, text = "messages", "".join(content for _, content in request.messages)
    most = model.max_context * tokenizer.longest_piece
    if len(text) > most:
        raise InvalidRequest(
            f"{len(text)} characters cannot fit the context of {model.max_context} tokens",
            reason="CONTEXT_EXCEEDED",
            field=field_name,
        )


def _tokens(
    request: GenerationRequest, model: ModelInfo, tokenizer: Tokenizer, history: tuple[int, ...]
) -> tuple[int, ...]:
    if request.messages is not None:
        messages = [(_TEMPLATE_ROLES.get(role, role), content) for role, content in request.messages]
        token_ids = tuple(tokenizer.chat(messages))
        check_token_ids(token_ids, model.vocab_size, "messages")
        return token_ids
    if request.prompt is not None:
        new = tuple(tokenizer.encode(request.prompt))
        check_token_ids(new, model.vocab_size, "prompt")
    else:
        new = request.token_ids or ()
        check_token_ids(new, model.vocab_size, "token_ids")
    return (*history, *new)


def _mode(request: GenerationRequest, default: Acceptance) -> tuple[Mode, int | None]:
    """The mode, and the seed it runs under (coupled mode only; drawn where none was given)."""
    if request.sampling.temperature == 0:
        return Mode.GREEDY, None
    acceptance = request.acceptance or default
    if acceptance is Acceptance.REJECTION and request.seed is not None:
        raise InvalidRequest(
            "rejection mode cannot honour a seed: leave it out, or ask for acceptance coupled",
            reason="SEED_NOT_SUPPORTED",
            field="seed",
        )
    if acceptance is Acceptance.COUPLED or request.seed is not None:
        seed = secrets.randbits(_DRAWN_SEED_BITS) if request.seed is None else request.seed
        return Mode.COUPLED, seed
    return Mode.REJECTION, None
