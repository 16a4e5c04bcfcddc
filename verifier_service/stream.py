"""A source of drafts in one session; a drafter's stream, what it was told and what it still has to answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace

from forerun.core.survival import Survival
from forerun.core.types import FinishReason, Verdict

UNREAD_LIMIT_NS = 5_000_000_000  # a drafter that leaves a verdict unread this long is detached


class Source:
    """Whose drafts a session's tree holds under `number`, and what passes made of them."""

    def __init__(self, number: int, source: str, survival: Survival) -> None:
        self.number = number
        self.source = source
        self.survival = survival
        self.num_passes = 0
        self.num_tested = 0
        self.num_accepted = 0
        self.window = 1  # undecided tokens it may have now; 0: it is to stop

    def learn(self, num_tested: int, num_accepted: int, *, brought: bool) -> None:
        """Take in what one pass decided about this source's tokens; whether it was the first to draft one accepted."""
        self.num_passes += 1
        self.num_tested += num_tested
        self.num_accepted += num_accepted
        if num_tested:
            self.survival.observe(num_tested, num_accepted)
        else:
            self.survival.passed_over()
        if num_accepted:
            self.survival.brought(one=brought)


class DraftStream(Source):
    """Verdicts for one drafter, merged while unsent, so that a slow reader costs one message of memory."""

    def __init__(
        self,
        number: int,
        drafter: str,
        source: str,
        survival: Survival,
        *,
        laws: bool,
        first_pass: int = 0,
    ) -> None:
        super().__init__(number, source, survival)
        self.num_passes = first_pass
        self.drafter = drafter
        self.laws = laws  # its laws are trusted in rejection mode
        self.detached = False
        self.said_end = False  # the last verdict is queued
        self.answered_base = -1  # the last settled length a message of this stream spoke about
        self.answers = 1.0  # learned: share of the times it was heard when it had tokens
        self.told_base = 0  # the settled length it was last told
        self.told_ns = time.monotonic_ns()  # when
        self._counts_told = (0, 0)
        # Settled lengths not yet answered, and when told.
        self._told: deque[tuple[int, int]] = deque(maxlen=256)
        self.turnaround_ns = 0  # learned: from verdict to the first message about it; 0 unknown
        self._unsent: Verdict | None = None
        self._unsent_since_ns = 0
        self._wake = asyncio.Event()

    def push(self, verdict: Verdict) -> None:
        """Queue a verdict; one that is still unsent takes this one in."""
        now = time.monotonic_ns()
        self.told(verdict.base + len(verdict.token_ids), now)
        self.window = verdict.window
        self.said_end = verdict.finish_reason is not FinishReason.NONE
        if self._unsent is None:
            self._unsent, self._unsent_since_ns = verdict, now
        else:
            self._unsent = _merge(self._unsent, verdict)
        self._wake.set()

    def unread(self, now_ns: int) -> bool:
        """Whether a verdict has been left unread for longer than a drafter may."""
        return self._unsent is not None and now_ns - self._unsent_since_ns > UNREAD_LIMIT_NS

    def told(self, base: int, now_ns: int) -> None:
        """Note that it was told the settled length `base`."""
        self.told_base, self.told_ns = base, now_ns
        self._told.append((base, now_ns))

    def take_counts(self) -> tuple[int, int]:
        """Tokens of its own that were tested, and accepted, since this was last asked."""
        before, self._counts_told = self._counts_told, (self.num_tested, self.num_accepted)
        return self.num_tested - before[0], self.num_accepted - before[1]

    def heard(self, base: int, num_tokens: int, now_ns: int) -> int:
        """Note a message about the settled length `base`; return its turnaround if it is the first, else 0."""
        if base <= self.answered_base:
            return 0
        self.answered_base = base
        self.answered(num_tokens)
        if num_tokens:
            self.survival.sent()
        told_ns = self.told_ns
        while self._told and self._told[0][0] <= base:
            told_ns = self._told.popleft()[1]
        taken = max(now_ns - told_ns, 1)
        self.turnaround_ns = taken if not self.turnaround_ns else (3 * self.turnaround_ns + taken) // 4
        return taken

    def answered(self, num_tokens: int) -> None:
        """It spoke once more about a new text, with tokens or with none."""
        self.answers += ((num_tokens > 0) - self.answers) / 8

    @property
    def promise(self) -> float:
        """How likely the next token is one of its own, accepted; 0 while it is to stop."""
        return self.answers * self.survival.at(0) if self.window else 0.0

    def unanswered(self) -> None:
        """Note that it was waited for in vain: an answer that did not come is one without tokens."""
        self.answered(0)

    def owes(self, base: int) -> bool:
        """Whether nothing has come yet about the settled length `base`."""
        return not self.detached and self.window > 0 and self.answered_base < base

    def close(self) -> None:
        """End the stream; `verdicts` stops after what is queued."""
        self.detached = True
        self._wake.set()

    async def verdicts(self) -> AsyncIterator[Verdict]:
        """Yield verdicts, complete and in order, until the session ends or the stream is closed."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            verdict, self._unsent = self._unsent, None
            if verdict is not None:
                yield verdict
                if verdict.finish_reason is not FinishReason.NONE:
                    return
            if self.detached and self._unsent is None:
                return


def _merge(older: Verdict, newer: Verdict) -> Verdict:
    return replace(
        newer,
        base=older.base,
        token_ids=older.token_ids + newer.token_ids,
        num_drafted=older.num_drafted + newer.num_drafted,
        num_accepted=older.num_accepted + newer.num_accepted,
    )
