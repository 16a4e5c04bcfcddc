"""Stop strings: found across token borders, and held back before the commit.

The answer ends before the stop string that is complete first; of several that end at the same byte, the
longest counts. The search runs over UTF-8 bytes (Aho and Corasick, 1975, doi:10.1145/360825.360855), O(1)
amortised a byte, so it does not depend on how the model cut the text into tokens or the verifier into
passes.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable, Sequence

from gateway.text import Tokenizer, utf8


class StopAutomaton:
    """All stop strings as one automaton. State 0 is "no stop string has begun".

    `depth[state]`: how many of the last bytes are the longest beginning of a stop string; `match[state]`:
    length of the longest stop string that ends here, or 0.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        self.match = [0]
        for text in stop:
            self._add(utf8(text, "stop"))
        self._link()

    def _add(self, pattern: bytes) -> None:
        state = 0
        for byte in pattern:
            if byte not in self._next[state]:
                self._next[state][byte] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.match.append(0)
            state = self._next[state][byte]
        self.match[state] = len(pattern)

    def _link(self) -> None:
        # Breadth first, so that a state's shorter suffixes are linked before it.
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            self.match[state] = self.match[state] or self.match[self._fail[state]]
            for byte, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], byte)
                queue.append(child)

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte."""
        while byte not in self._next[state]:
            if state == 0:
                return 0
            state = self._fail[state]
        return self._next[state][byte]


class StopSearch:
    """Follows one answer's settled tokens and says how many of them may be committed.

    Invariant: no byte of the first `num_safe` tokens may still turn out to belong to a stop string, except
    that once `cut` is set the last of them may contain the stop string's beginning. Everything here is a
    function of the tokens, however they were split into pushes.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str]) -> None:
        self._reader = tokenizer.reader()
        self._automaton = StopAutomaton(stop)
        self._state = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_chars = 0  # characters of the bytes before `_held`
        self._held = bytearray()  # the last bytes, which may begin a stop string
        self._num_bytes = 0
        self._ends: deque[int] = deque()  # byte offset at which each unsafe token ends
        self._safe_end = 0  # byte offset at which the last safe token ends
        self.num_safe = 0
        self.cut: int | None = None

    def push(self, token_ids: Iterable[int]) -> None:
        """Take the next tokens in. After a stop string is complete further tokens change nothing."""
        for token_id in token_ids:
            if self.cut is not None:
                return
            piece = self._reader.read(token_id)
            self._ends.append(self._num_bytes + len(piece))
            for byte in piece:
                self._take(byte)
                if self.cut is not None:
                    return
            self._release(self._num_bytes - len(self._held))

    def _take(self, byte: int) -> None:
        self._state = self._automaton.step(self._state, byte)
        self._held.append(byte)
        self._num_bytes += 1
        length = self._automaton.match[self._state]
        num_free = len(self._held) - (length or self._automaton.depth[self._state])
        self._num_chars += len(self._decoder.decode(bytes(self._held[:num_free]), final=length > 0))
        del self._held[:num_free]
        if length:
            start = self._num_bytes - length
            self._release(start)
            self.cut = self._num_chars
            # A token that begins before the stop string is kept for the text in front of it.
            self.num_safe += self._safe_end < start

    def _release(self, offset: int) -> None:
        while self._ends and self._ends[0] <= offset:
            self._safe_end = self._ends.popleft()
            self.num_safe += 1
