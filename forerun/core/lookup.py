"""Look-up drafting: what followed the last time these words stood in the session's own text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_MATCH = (
    32  # tokens; two places that agree on more are equally good evidence, and loops agree on everything
)


class Lookup:
    """A session's text, searched for earlier places like its end.

    A search costs one vector scan of the text (some microseconds for 8,000 tokens) and one step over the
    remaining places for each matching token; nothing is indexed, so growing costs a copy of the new tokens
    alone.
    """

    def __init__(self, token_ids: Sequence[int] = ()) -> None:
        self._buffer = np.empty(256, dtype=np.int64)
        self._length = 0
        self.extend(token_ids)

    def __len__(self) -> int:
        return self._length

    def extend(self, token_ids: Sequence[int]) -> None:
        """The text has grown by `token_ids`."""
        self._place(token_ids)
        self._length += len(token_ids)

    def propose(self, tail: Sequence[int], length: int, min_match: int = 2) -> tuple[int, ...]:
        """What followed the earlier place most like the end of text + `tail`: `length` tokens, or none.

        The place with the longest match wins (all above MAX_MATCH count alike), the latest among equals; a
        match shorter than `min_match` ≥ 1 is none. Where the continuation reaches the end it goes on with
        itself, so that a loop is continued as a loop. `tail` is not kept.
        """
        self._place(tail)
        end = self._length + len(tail)
        start = self._match(self._buffer[:end], min_match)
        if start is None or length <= 0:
            return ()
        period = end - start  # the continuation repeats once it has used up what there is
        followed: list[int] = self._buffer[start : start + min(length, period)].tolist()
        return tuple(followed[i % period] for i in range(length))

    def _place(self, token_ids: Sequence[int]) -> None:
        end = self._length + len(token_ids)
        if end > len(self._buffer):
            grown = np.empty(2 * end, dtype=np.int64)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        self._buffer[self._length : end] = token_ids

    @staticmethod
    def _match(text: np.ndarray[tuple[int], np.dtype[np.int64]], min_match: int) -> int | None:
        """Where the continuation of the best earlier match starts; None where none is long enough."""
        end = len(text)
        best = None
        starts = np.arange(1, end)
        for matched in range(1, min(end, MAX_MATCH + 1)):
            starts = starts[text[starts - matched] == text[end - matched]]
            # A place closer to the front than the match is long has nothing left to compare.
            if matched >= min_match and len(starts):
                best = int(starts[-1])
            starts = starts[starts > matched]
            if not len(starts):
                break
        return best
