"""The nouns of the core. Pure data: no torch, no proto, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]  # shape (vocab_size,)
Row = Logits | np.int64  # what a pass says at one position: logits, or the token id where the engine named it
Said = NDArray[np.float32] | NDArray[np.int64]  # at several positions: (number, vocab_size), or (number,)
Probs = NDArray[np.float64]


class Mode(IntEnum):
    """How a session draws its tokens. Values equal `forerun.v1.Mode`."""

    GREEDY = 1
    COUPLED = 2
    REJECTION = 3


class Acceptance(IntEnum):
    """What was asked for. Values equal `forerun.v1.Acceptance`."""

    AUTO = 0
    REJECTION = 1
    COUPLED = 2


class Origin(IntEnum):
    """Where a settled token came from. Values equal `forerun.v1.Origin`."""

    PLAIN = 1
    DRAFTED = 2
    CORRECTION = 3
    BONUS = 4


class FinishReason(IntEnum):
    """Why a generation ended. Values equal `forerun.v1.FinishReason`; NONE is UNSPECIFIED: it has not."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    CANCELLED = 3
    ERROR = 4


class Exactness(Enum):
    """What the start-up probe of row invariance found."""

    BITWISE = "bitwise"
    NUMERIC = "numeric"


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters of a law: temperature, then top-k, top-p, min-p in this order. Temperature 0 is a one-hot law."""

    temperature: float = 0.0
    top_k: int = 0  # 0 keeps all
    top_p: float = 1.0  # 1 keeps all
    min_p: float = 0.0  # 0 keeps all

    @property
    def cuts(self) -> bool:
        """Whether tokens are left out of the law."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class Sampler:
    """How the target's token follows from its logits alone: argmax at temperature 0, else the draw keyed by `key`."""

    sampling: Sampling
    key: bytes = b""


@dataclass(frozen=True, slots=True)
class Law:
    """A sparse probability law: `probs[i]` of `token_ids[i]`; distinct ids; float64 in memory, float32 on the wire."""

    token_ids: NDArray[np.int64]
    probs: Probs


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a model is, as far as another service must know."""

    name: str
    revision: str
    vocab_fingerprint: str  # lower-case hex SHA-256
    vocab_size: int
    max_context: int  # tokens, prompt included
    numerics: str  # equal string: equal bits
    exact: Exactness
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """A tokenizer as it travels: tokenizer.json, the chat template ("" if none), special tokens by role."""

    tokenizer_json: bytes
    chat_template: str
    special_tokens: dict[str, str] = field(default_factory=dict)
    vocab_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One session's share of one pass; fields as in `forerun.v1.Pass`."""

    plan_token_ids: tuple[int, ...] = ()
    target_token_ids: tuple[int, ...] = ()
    num_tested: int = 0
    num_accepted: int = 0
    num_salvaged: int = 0
    num_torn: int = 0
    num_held: int = 0
    source: str = ""
    num_rows: int = 0
    num_sessions: int = 0
    pass_us: int = 0
    wait_us: int = 0
    queue_us: int = 0
    num_prefilled: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """Tokens one pass decided; as `forerun.v1.Settled`. `base`: settled length before them, prompt included."""

    base: int
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    finish_reason: FinishReason = FinishReason.NONE
    record: PassRecord | None = None


@dataclass(frozen=True, slots=True)
class DraftMessage:
    """A chain of drafted tokens; as `forerun.v1.Draft`. `laws`: () or one Law a token."""

    base: int
    parent: int
    first_id: int
    token_ids: tuple[int, ...]
    laws: tuple[Law, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a pass decided, for one stream; as `forerun.v1.Verdict`."""

    base: int
    token_ids: tuple[int, ...]
    num_drafted: int = 0
    num_accepted: int = 0
    head_node: int = 0
    seen_id: int = 0
    held: int = 0
    next_length: int = 0
    window: int = 0
    finish_reason: FinishReason = FinishReason.NONE
    pass_us: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All a drafter must know; as `forerun.v1.Snapshot`. The base is `len(token_ids)`."""

    stream: int
    epoch: int
    token_ids: tuple[int, ...]
    mode: Mode
    sampling: Sampling
    noise_key: bytes
    window: int
    last_position: int
    end_token_ids: tuple[int, ...]
    next_length: int
