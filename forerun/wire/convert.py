"""Core types from and to the messages of `forerun.v1`; nothing beyond this package sees a message's fields.

What a message cannot express (an enum without a value, a law whose two lists differ in length) is
InvalidRequest; whether the values make sense is for `forerun.core.limits`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import numpy as np

from forerun.core.limits import MAX_DRAFT_TOKENS, MAX_LAW_TOKENS
from forerun.core.types import (
    DraftMessage,
    Exactness,
    FinishReason,
    Law,
    Mode,
    ModelInfo,
    Origin,
    PassRecord,
    Sampling,
    Settled,
    Snapshot,
    TokenizerFiles,
    Verdict,
)
from forerun.errors import InvalidRequest
from forerun.v1 import model_pb2, sampling_pb2, verifier_pb2

NOISE_KEY_BYTES = 32

_EXACT_TO_PROTO = {
    Exactness.BITWISE: model_pb2.EXACTNESS_BITWISE,
    Exactness.NUMERIC: model_pb2.EXACTNESS_NUMERIC,
}

_E = TypeVar("_E", bound=IntEnum)


def _enum(kind: type[_E], value: int, field: str) -> _E:
    try:
        return kind(value)
    except ValueError:
        raise InvalidRequest(f"{field} has no value {value}", reason="BAD_ENUM", field=field) from None


def sampling_to_proto(sampling: Sampling) -> sampling_pb2.Sampling:
    return sampling_pb2.Sampling(
        temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p, min_p=sampling.min_p
    )


def sampling_from_proto(message: sampling_pb2.Sampling) -> Sampling:
    """The parameters; an unset top_p (0) keeps all, as 1 does."""
    return Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=1.0 if message.top_p == 0 else message.top_p,
        min_p=message.min_p,
    )


def mode_from_proto(value: int, field: str = "mode") -> Mode:
    return _enum(Mode, value, field)


def finish_reason_from_proto(value: int, field: str = "finish_reason") -> FinishReason:
    return _enum(FinishReason, value, field)


def exactness_to_proto(exact: Exactness) -> model_pb2.Exactness.ValueType:
    return _EXACT_TO_PROTO[exact]


def exactness_from_proto(value: int) -> Exactness:
    """BITWISE only where it is claimed: what is not stated is not promised."""
    return Exactness.BITWISE if value == model_pb2.EXACTNESS_BITWISE else Exactness.NUMERIC


def model_to_proto(model: ModelInfo) -> model_pb2.Model:
    return model_pb2.Model(
        name=model.name,
        revision=model.revision,
        vocab_fingerprint=model.vocab_fingerprint,
        vocab_size=model.vocab_size,
        max_context=model.max_context,
        numerics=model.numerics,
        exact=exactness_to_proto(model.exact),
        end_token_ids=model.end_token_ids,
    )


def model_from_proto(message: model_pb2.Model) -> ModelInfo:
    return ModelInfo(
        name=message.name,
        revision=message.revision,
        vocab_fingerprint=message.vocab_fingerprint,
        vocab_size=message.vocab_size,
        max_context=message.max_context,
        numerics=message.numerics,
        exact=exactness_from_proto(message.exact),
        end_token_ids=tuple(message.end_token_ids),
    )


def tokenizer_to_proto(files: TokenizerFiles) -> verifier_pb2.GetTokenizerResponse:
    return verifier_pb2.GetTokenizerResponse(
        tokenizer_json=files.tokenizer_json,
        chat_template=files.chat_template,
        special_tokens=files.special_tokens,
        vocab_fingerprint=files.vocab_fingerprint,
    )


def tokenizer_from_proto(message: verifier_pb2.GetTokenizerResponse) -> TokenizerFiles:
    return TokenizerFiles(
        tokenizer_json=message.tokenizer_json,
        chat_template=message.chat_template,
        special_tokens=dict(message.special_tokens),
        vocab_fingerprint=message.vocab_fingerprint,
    )


def law_to_proto(law: Law) -> verifier_pb2.Law:
    """The law as it travels: each probability rounded to float32."""
    return verifier_pb2.Law(
        token_ids=law.token_ids.tolist(), probs=np.asarray(law.probs, dtype=np.float32).tolist()
    )


def law_from_proto(message: verifier_pb2.Law) -> Law:
    """Int64 ids and float64 probabilities, 1 to MAX_LAW_TOKENS of each; otherwise InvalidRequest (BAD_LAW)."""
    if len(message.token_ids) > MAX_LAW_TOKENS:
        raise InvalidRequest(
            f"a law of {len(message.token_ids)} tokens; at most {MAX_LAW_TOKENS}",
            reason="BAD_LAW",
            field="draft.laws",
        )
    if not message.token_ids or len(message.token_ids) != len(message.probs):
        raise InvalidRequest(
            f"a law has {len(message.token_ids)} tokens and {len(message.probs)} probabilities",
            reason="BAD_LAW",
            field="draft.laws",
        )
    return Law(
        token_ids=np.array(message.token_ids, dtype=np.int64),
        probs=np.array(message.probs, dtype=np.float32).astype(np.float64),
    )


def draft_to_proto(draft: DraftMessage) -> verifier_pb2.Draft:
    return verifier_pb2.Draft(
        base=draft.base,
        parent=draft.parent,
        first_id=draft.first_id,
        token_ids=draft.token_ids,
        laws=[law_to_proto(law) for law in draft.laws],
    )


def draft_from_proto(message: verifier_pb2.Draft) -> DraftMessage:
    """The draft, its laws read; InvalidRequest (BAD_DRAFT) for more tokens than any window has, before reading them."""
    if len(message.token_ids) > MAX_DRAFT_TOKENS or len(message.laws) > MAX_DRAFT_TOKENS:
        raise InvalidRequest(
            f"a draft of {max(len(message.token_ids), len(message.laws))} tokens; at most {MAX_DRAFT_TOKENS}",
            reason="BAD_DRAFT",
            field="draft.token_ids",
        )
    return DraftMessage(
        base=message.base,
        parent=message.parent,
        first_id=message.first_id,
        token_ids=tuple(message.token_ids),
        laws=tuple(law_from_proto(law) for law in message.laws),
    )


def verdict_to_proto(verdict: Verdict) -> verifier_pb2.Verdict:
    return verifier_pb2.Verdict(
        base=verdict.base,
        token_ids=verdict.token_ids,
        num_drafted=verdict.num_drafted,
        num_accepted=verdict.num_accepted,
        head_node=verdict.head_node,
        seen_id=verdict.seen_id,
        held=verdict.held,
        next_length=verdict.next_length,
        window=verdict.window,
        finish_reason=sampling_pb2.FinishReason.ValueType(verdict.finish_reason),
        pass_us=verdict.pass_us,
    )


def verdict_from_proto(message: verifier_pb2.Verdict) -> Verdict:
    return Verdict(
        base=message.base,
        token_ids=tuple(message.token_ids),
        num_drafted=message.num_drafted,
        num_accepted=message.num_accepted,
        head_node=message.head_node,
        seen_id=message.seen_id,
        held=message.held,
        next_length=message.next_length,
        window=message.window,
        finish_reason=finish_reason_from_proto(message.finish_reason, "verdict.finish_reason"),
        pass_us=message.pass_us,
    )


def snapshot_to_proto(snapshot: Snapshot) -> verifier_pb2.Snapshot:
    return verifier_pb2.Snapshot(
        stream=snapshot.stream,
        epoch=snapshot.epoch,
        token_ids=snapshot.token_ids,
        mode=sampling_pb2.Mode.ValueType(snapshot.mode),
        sampling=sampling_to_proto(snapshot.sampling),
        noise_key=snapshot.noise_key,
        window=snapshot.window,
        last_position=snapshot.last_position,
        end_token_ids=snapshot.end_token_ids,
        next_length=snapshot.next_length,
    )


def snapshot_from_proto(message: verifier_pb2.Snapshot) -> Snapshot:
    """The state at attach. InvalidRequest for no mode, or a coupled one without its 32-byte noise key."""
    mode = mode_from_proto(message.mode, "snapshot.mode")
    check_noise_key(message.noise_key, mode, "snapshot.noise_key")
    return Snapshot(
        stream=message.stream,
        epoch=message.epoch,
        token_ids=tuple(message.token_ids),
        mode=mode,
        sampling=sampling_from_proto(message.sampling),
        noise_key=message.noise_key,
        window=message.window,
        last_position=message.last_position,
        end_token_ids=tuple(message.end_token_ids),
        next_length=message.next_length,
    )


def check_noise_key(noise_key: bytes, mode: Mode, field: str = "noise_key") -> None:
    """Raise InvalidRequest unless the key is 32 bytes in coupled mode and absent in the others."""
    expected = NOISE_KEY_BYTES if mode is Mode.COUPLED else 0
    if len(noise_key) != expected:
        raise InvalidRequest(
            f"{field} has {len(noise_key)} bytes; {mode.name.lower()} mode takes {expected}",
            reason="BAD_NOISE_KEY",
            field=field,
        )


def pass_to_proto(record: PassRecord) -> verifier_pb2.Pass:
    return verifier_pb2.Pass(
        plan_token_ids=record.plan_token_ids,
        target_token_ids=record.target_token_ids,
        num_tested=record.num_tested,
        num_accepted=record.num_accepted,
        num_salvaged=record.num_salvaged,
        num_torn=record.num_torn,
        num_held=record.num_held,
        source=record.source,
        num_rows=record.num_rows,
        num_sessions=record.num_sessions,
        pass_us=record.pass_us,
        wait_us=record.wait_us,
        queue_us=record.queue_us,
        num_prefilled=record.num_prefilled,
    )


def pass_from_proto(message: verifier_pb2.Pass) -> PassRecord:
    return PassRecord(
        plan_token_ids=tuple(message.plan_token_ids),
        target_token_ids=tuple(message.target_token_ids),
        num_tested=message.num_tested,
        num_accepted=message.num_accepted,
        num_salvaged=message.num_salvaged,
        num_torn=message.num_torn,
        num_held=message.num_held,
        source=message.source,
        num_rows=message.num_rows,
        num_sessions=message.num_sessions,
        pass_us=message.pass_us,
        wait_us=message.wait_us,
        queue_us=message.queue_us,
        num_prefilled=message.num_prefilled,
    )


def settled_to_proto(settled: Settled) -> verifier_pb2.Settled:
    return verifier_pb2.Settled(
        base=settled.base,
        token_ids=settled.token_ids,
        origins=[sampling_pb2.Origin.ValueType(origin) for origin in settled.origins],
        finish_reason=sampling_pb2.FinishReason.ValueType(settled.finish_reason),
        **({} if settled.record is None else {"pass": pass_to_proto(settled.record)}),
    )


def settled_from_proto(message: verifier_pb2.Settled) -> Settled:
    """The settled tokens. Raises InvalidRequest unless there is one origin a token."""
    if len(message.origins) != len(message.token_ids):
        raise InvalidRequest(
            f"{len(message.token_ids)} settled tokens with {len(message.origins)} origins",
            reason="BAD_SETTLED",
            field="settled.origins",
        )
    return Settled(
        base=message.base,
        token_ids=tuple(message.token_ids),
        origins=tuple(_enum(Origin, origin, "settled.origins") for origin in message.origins),
        finish_reason=finish_reason_from_proto(message.finish_reason, "settled.finish_reason"),
        record=pass_from_proto(getattr(message, "pass")) if message.HasField("pass") else None,
    )
