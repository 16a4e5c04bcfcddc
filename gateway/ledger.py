"""What Redis has confirmed of one answer, and the epoch under which this gateway may add to it."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from forerun.core.types import Exactness, FinishReason, Origin, Settled
from forerun.errors import InternalFault, NotFound, Unavailable
from gateway import metrics
from gateway.store.entry import Entry
from gateway.store.session import StoredSession
from gateway.store.store import Claim, Committed, Outcome, Store

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0

_T = TypeVar("_T")


class Ledger:
    """One turn's tokens and entries. `session` was read with its entries; its epoch is ours.

    Invariant: `token_ids` and `entries` are what Redis has confirmed, and nothing else. Outages of Redis are
    waited out for `outage_s`, then `Unavailable`; every script may be asked twice.
    """

    def __init__(self, session: StoredSession, store: Store, outage_s: float) -> None:
        self.session_id = session.session_id
        self.epoch = session.epoch
        self.token_ids = list(session.token_ids)
        self.entries = list(session.entries)
        self.num_prompt = session.turn.prompt_length
        self.verifier = session.verifier
        self.numerics = session.numerics
        self._exact = session.exact
        self._store = store
        self._outage_s = outage_s
        self._commit_us = 0
        self._log = structlog.get_logger("gateway.ledger").bind(session_id=self.session_id)

    def beyond(self, length: int) -> Sequence[Entry]:
        """Entries that end beyond `length` tokens, oldest first."""
        return self.entries[bisect_right(self.entries, length, key=lambda entry: entry.end) :]

    async def commit(self, entry: Entry) -> bool:
        """Redis holds the entry; False: another owns the session. Raises InternalFault for another text."""
        began = time.perf_counter()
        committed = await self._commit(entry)
        while committed.outcome is Outcome.SHORT:
            committed = await self._send_again(committed.length) or await self._commit(entry)
        if committed.outcome is Outcome.FENCED:
            return False
        if committed.outcome is Outcome.CONFLICT:
            raise InternalFault("Redis holds another text than was committed", reason="COMMIT_CONFLICT")
        took = time.perf_counter() - began
        self._commit_us = round(took * 1e6)
        metrics.COMMIT_SECONDS.observe(took)
        metrics.TOKENS.inc(len(entry.token_ids))
        self.entries.append(entry)
        self.token_ids += entry.token_ids
        return True

    async def refuse(self) -> bool:
        """The answer has ended with an error; False: another owns the session."""
        return await self.commit(Entry((Settled(len(self.token_ids), (), (), FinishReason.ERROR),)))

    async def claim_next_epoch(self) -> bool:
        """`epoch` is one higher and still ours; False: another owns the session, or it is gone."""
        try:
            claimed = await self._insist(
                lambda: self._store.take_over(self.session_id, held_epoch=self.epoch)
            )
        except NotFound:
            return False
        if claimed.claim is not Claim.TAKEN:
            return False
        self.epoch = claimed.epoch
        return True

    async def place(self, verifier: str, numerics: str, exact: Exactness) -> bool:
        """Redis knows which verifier decodes from here on, and how exact the text is; False: another owns it.

        A text that two kinds of arithmetic wrote, or one that does not promise its bits, is numeric.
        """
        begun = len(self.token_ids) > self.num_prompt
        if begun and (self._exact is Exactness.NUMERIC or numerics != self.numerics):
            exact = Exactness.NUMERIC
        placed = await self._insist(
            lambda: self._store.place(
                self.session_id, self.epoch, verifier=verifier, numerics=numerics, exact=exact
            )
        )
        self.verifier, self.numerics, self._exact = verifier, numerics, exact
        return placed

    async def beat(self) -> bool:
        """The lease is renewed, or Redis cannot be reached now; False: another owns the session."""
        epoch = self.epoch
        try:
            alive = await self._store.heartbeat(self.session_id, epoch)
        except Unavailable:
            return True
        return alive or epoch != self.epoch

    async def release(self, *, detached: bool) -> None:
        """The lease is given up, so that any gateway may go on at once; without Redis it lapses by itself."""
        try:
            await self._store.release(self.session_id, self.epoch, detached=detached)
        except Unavailable:
            self._log.info("the lease is left to lapse")

    async def _commit(self, entry: Entry) -> Committed:
        return await self._insist(
            lambda: self._store.commit(self.session_id, self.epoch, entry, commit_us=self._commit_us)
        )

    async def _send_again(self, length: int) -> Committed | None:
        """Redis holds again what it confirmed and lost (its disk lags behind its word); None: all of it."""
        self._log.warning("the store lost tokens", held=length, confirmed=len(self.token_ids))
        missing = list(self.beyond(length))
        if not missing or missing[0].base > length:
            end = missing[0].base if missing else len(self.token_ids)
            lost = tuple(self.token_ids[length:end])
            missing.insert(0, Entry((Settled(length, lost, (Origin.PLAIN,) * len(lost)),)))
        for entry in missing:
            committed = await self._commit(entry)
            if committed.outcome is not Outcome.OK:
                return committed
        return None

    async def _insist(self, ask: Callable[[], Awaitable[_T]]) -> _T:
        loop = asyncio.get_running_loop()
        give_up_at, pause = loop.time() + self._outage_s, _FIRST_PAUSE_S
        while True:
            try:
                return await ask()
            except Unavailable:
                if loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LAST_PAUSE_S)
