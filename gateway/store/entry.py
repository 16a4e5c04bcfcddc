"""What one commit adds: an entry of a session's event stream."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from forerun.core.types import FinishReason, Origin, Settled
from forerun.v1 import verifier_pb2
from forerun.wire.convert import settled_from_proto, settled_to_proto


@dataclass(frozen=True, slots=True)
class Entry:
    """Tokens committed together, as the consecutive pieces they were settled in.

    A piece's `record` stands with the last token of its pass; a piece without one is continued by the next.
    The last piece's finish reason is the entry's. `cut` is set only with a finish.
    """

    pieces: tuple[Settled, ...]
    cut: int | None = None

    @property
    def base(self) -> int:
        return self.pieces[0].base

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token for piece in self.pieces for token in piece.token_ids)

    @property
    def origins(self) -> tuple[Origin, ...]:
        return tuple(origin for piece in self.pieces for origin in piece.origins)

    @property
    def end(self) -> int:
        """Committed length after it."""
        return self.base + sum(len(piece.token_ids) for piece in self.pieces)

    @property
    def finish_reason(self) -> FinishReason:
        return self.pieces[-1].finish_reason

    def serialized(self) -> list[bytes]:
        """The pieces, each as a `forerun.v1.Settled`."""
        return [settled_to_proto(piece).SerializeToString() for piece in self.pieces]


def from_stream(fields: Mapping[bytes, bytes]) -> tuple[int, Entry]:
    """The number of the turn, and the entry, that `commit.lua` wrote."""
    names = itertools.takewhile(fields.__contains__, (f"settled{i}".encode() for i in itertools.count()))
    pieces = tuple(settled_from_proto(verifier_pb2.Settled.FromString(fields[name])) for name in names)
    cut = fields.get(b"cut")
    return int(fields[b"turn"]), Entry(pieces, None if cut is None else int(cut))
