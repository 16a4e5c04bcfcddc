"""Between settling and committing: tokens that may belong to a stop string wait here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from forerun.core.types import FinishReason, Settled
from gateway.stops import StopSearch
from gateway.store.entry import Entry
from gateway.store.session import Turn
from gateway.text import Tokenizer


class Holdback:
    """Turns what one Decode settles into what may be committed, and ends the answer at its first stop string.

    Invariant: what was returned and then `_waiting` are consecutive and end at `length`, the settled length.
    """

    def __init__(self, tokenizer: Tokenizer, turn: Turn, token_ids: tuple[int, ...]) -> None:
        """`token_ids`: the prompt and what is committed of the answer."""
        self.length = len(token_ids)
        self._prompt_length = turn.prompt_length
        self._num_committed = len(token_ids) - turn.prompt_length
        self._search = StopSearch(tokenizer, turn.stop)
        self._search.push(token_ids[turn.prompt_length :])
        self._waiting: list[Settled] = []

    def take(self, settled: Sequence[Settled]) -> Entry | None:
        """What can be committed now that these tokens are settled, oldest first; None if nothing.

        One with a finish reason is the last: a complete stop string or the verifier's end came.
        """
        for one in settled:
            self.length += len(one.token_ids)
            self._waiting.append(replace(one, finish_reason=FinishReason.NONE))
            self._search.push(one.token_ids)
            if self._search.cut is not None:
                return self._release(self._search.num_safe, FinishReason.STOP, self._search.cut)
            if one.finish_reason is not FinishReason.NONE:
                return self._release(self.length - self._prompt_length, one.finish_reason, None)
        return self._release(self._search.num_safe, FinishReason.NONE, None)

    def _release(self, num_answer: int, finish: FinishReason, cut: int | None) -> Entry | None:
        """An entry of the waiting tokens among the first `num_answer` of the answer."""
        num_answer = max(num_answer, self._num_committed)
        room = num_answer - self._num_committed
        if not room and finish is FinishReason.NONE:
            return None
        self._num_committed = num_answer
        taken: list[Settled] = []
        while self._waiting and (room or finish is not FinishReason.NONE):
            piece = self._waiting.pop(0)
            fits = len(piece.token_ids) <= room
            kept = piece if fits else _part(piece, 0, room)
            if not fits and finish is FinishReason.NONE:
                self._waiting.insert(0, _part(piece, room, len(piece.token_ids)))
                kept = replace(kept, record=None)  # stands with the pass's last token
            taken.append(kept)
            room -= len(kept.token_ids)
        taken[-1] = replace(taken[-1], finish_reason=finish)
        return Entry(tuple(taken), cut)


def _part(piece: Settled, start: int, stop: int) -> Settled:
    return replace(
        piece,
        base=piece.base + start,
        token_ids=piece.token_ids[start:stop],
        origins=piece.origins[start:stop],
    )
