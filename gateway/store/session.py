"""A session as Redis holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum

import numpy as np

from forerun.core.types import Exactness, FinishReason, Mode, ModelInfo, Sampling
from gateway.store.entry import Entry


class SessionStatus(Enum):
    """Who works on a session."""

    RUNNING = "running"  # a gateway, as long as its lease lives
    DETACHED = "detached"  # nobody; its client went away before the end
    FINISHED = "finished"  # nobody; complete


@dataclass(frozen=True, slots=True)
class Turn:
    """One question of a conversation: what stays the same until its answer is complete."""

    model: ModelInfo
    sampling: Sampling
    mode: Mode
    seed: int | None
    noise_key: bytes  # 32 bytes in coupled mode, else empty
    prompt_length: int  # tokens before the answer, earlier turns included
    max_tokens: int  # most tokens of the answer
    stop: tuple[str, ...] = ()
    no_draft: bool = False
    ignore_end_tokens: bool = False
    request_id: str = ""
    request_digest: str = ""  # of the request with that id: another one may not join

    def to_fields(self) -> dict[str, str | bytes]:
        """The hash fields that `from_fields` reads back."""
        model = asdict(self.model) | {"exact": self.model.exact.value}
        return {
            "model": json.dumps(model),
            "sampling": json.dumps(asdict(self.sampling)),
            "mode": str(self.mode.value),
            "seed": "" if self.seed is None else str(self.seed),
            "noise_key": self.noise_key,
            "prompt_length": str(self.prompt_length),
            "max_tokens": str(self.max_tokens),
            "stop": json.dumps(self.stop),
            "no_draft": str(int(self.no_draft)),
            "ignore_end_tokens": str(int(self.ignore_end_tokens)),
            "request_id": self.request_id,
            "request_digest": self.request_digest,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, bytes]) -> Turn:
        """The turn that `to_fields` wrote."""
        model = json.loads(fields["model"])
        model |= {"exact": Exactness(model["exact"]), "end_token_ids": tuple(model["end_token_ids"])}
        return cls(
            model=ModelInfo(**model),
            sampling=Sampling(**json.loads(fields["sampling"])),
            mode=Mode(int(fields["mode"])),
            seed=int(fields["seed"]) if fields["seed"] else None,
            noise_key=fields["noise_key"],
            prompt_length=int(fields["prompt_length"]),
            max_tokens=int(fields["max_tokens"]),
            stop=tuple(json.loads(fields["stop"])),
            no_draft=fields["no_draft"] == b"1",
            ignore_end_tokens=fields["ignore_end_tokens"] == b"1",
            request_id=fields["request_id"].decode(),
            request_digest=fields["request_digest"].decode(),
        )


@dataclass(frozen=True, slots=True)
class StoredSession:
    """One consistent look at a session."""

    session_id: str
    status: SessionStatus
    epoch: int
    number: int  # of the current turn, from 1
    owner: str
    lease_ms: int  # what is left of the owner's lease; 0: lapsed or given up
    turn: Turn
    token_ids: tuple[int, ...]  # prompt and answer
    finish_reason: FinishReason = FinishReason.NONE
    cut: int | None = None  # characters of the answer's text shown, when a stop string ended it
    verifier: str = ""  # address of the last verifier
    numerics: str = ""  # of the last verifier of this turn
    exact: Exactness | None = None  # None until a verifier started this turn
    first_token_ms: float = 0.0
    total_ms: float = 0.0
    commit_ms: float = 0.0
    entries: tuple[Entry, ...] = ()  # of the current turn; only when asked for

    @property
    def answer_ids(self) -> tuple[int, ...]:
        return self.token_ids[self.turn.prompt_length :]

    @property
    def is_owned(self) -> bool:
        """Whether some gateway works on it now."""
        return self.status is SessionStatus.RUNNING and self.lease_ms > 0

    def with_entries(self, entries: tuple[Entry, ...]) -> StoredSession:
        return replace(self, entries=entries)


def from_reply(session_id: str, now_ms: int, flat: list[bytes], packed: bytes) -> StoredSession:
    """The session out of what `read.lua` returns."""
    fields = {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}
    cut = int(fields["cut"])
    exact = fields["exact"].decode()
    return StoredSession(
        session_id=session_id,
        status=SessionStatus(fields["status"].decode()),
        epoch=int(fields["epoch"]),
        number=int(fields["turn"]),
        owner=fields["owner"].decode(),
        lease_ms=max(0, int(fields["lease_until_ms"]) - now_ms),
        turn=Turn.from_fields(fields),
        token_ids=unpack(packed),
        finish_reason=FinishReason(int(fields["finish"])),
        cut=None if cut < 0 else cut,
        verifier=fields["verifier"].decode(),
        numerics=fields["numerics"].decode(),
        exact=Exactness(exact) if exact else None,
        first_token_ms=_since_start_ms(fields, "first_us"),
        total_ms=_since_start_ms(fields, "finished_us"),
        commit_ms=int(fields["commit_us"]) / 1000,
    )


def pack(token_ids: tuple[int, ...]) -> bytes:
    """Four bytes a token, little-endian."""
    return np.asarray(token_ids, dtype="<u4").tobytes()


def unpack(packed: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(packed, dtype="<u4").tolist())


def _since_start_ms(fields: Mapping[str, bytes], name: str) -> float:
    return (int(fields[name]) - int(fields["started_us"])) / 1000 if name in fields else 0.0
