"""A client's reading of one answer: from this gateway's own generation if there is one, else from Redis."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Protocol

from forerun.core.types import FinishReason
from forerun.errors import InternalFault, Unavailable
from gateway.events import Delta, Event, Opened
from gateway.generation import End, Generation
from gateway.store.entry import Entry
from gateway.store.session import SessionStatus, StoredSession
from gateway.store.store import MAX_BLOCK_MS, Store, turn_over
from gateway.summary import finished
from gateway.text import TextStream, Tokenizer


class Generations(Protocol):
    """The generations of this gateway."""

    def running(self, session_id: str) -> Generation | None:
        """The one of a session, if it runs here."""

    async def go_on(self, session: StoredSession) -> None:
        """Take the session over if nobody works on it. Raises Unavailable when this gateway takes no more."""


async def events(
    session: StoredSession,
    offset: int,
    store: Store,
    generations: Generations,
    tokenizer: Tokenizer,
    generation: Generation | None = None,
) -> AsyncGenerator[Event, None]:
    """Opened, the answer's tokens from `offset` on as they are committed, Finished.

    Concatenated, tokens and text are the same from every gateway and for every offset. Raises what ends it
    early: the error of `generation` (the one here, if any), NotFound (deleted), FailedPrecondition (another turn).
    """
    turn = session.turn
    yield Opened(session.session_id, turn.mode, turn.seed, turn.prompt_length, turn.model)
    text = TextStream(tokenizer)
    text.push(session.answer_ids[:offset], session.cut)
    position = turn.prompt_length + offset
    async with aclosing(entries(session, position, store, generations, generation)) as committed:
        async for entry in committed:
            skipped = position - entry.base
            token_ids, origins = entry.token_ids[skipped:], entry.origins[skipped:]
            if token_ids:
                shown = text.push(token_ids, entry.cut)
                yield Delta(position - turn.prompt_length, token_ids, origins, shown)
            position = entry.end
    session = await _current(store, session, with_entries=True)
    yield finished(session, text.end(session.cut))


async def entries(
    session: StoredSession,
    position: int,
    store: Store,
    generations: Generations,
    generation: Generation | None = None,
) -> AsyncGenerator[Entry, None]:
    """Entries beyond `position` tokens, oldest first, to the turn's end, whoever decodes.

    `generation`: the one to begin with; how it ended is this client's to know, however late it reads.
    """
    block_ms = 0
    while True:
        if generation is not None and generation.number == session.number:
            found = await generation.entries_beyond(position)
            if not found:
                _raise_end(generation)
                # It ended; what this client lacks is in Redis or will be.
                generation = None
        else:
            found = await store.tail(session, position, block_ms=block_ms)
            if not found:
                now = await _current(store, session)
                if now.status is SessionStatus.FINISHED:
                    found = await _last_entries(store, session, position, now)
                    if not found:
                        return
                elif not now.is_owned:
                    await generations.go_on(now)
                # A lapse of the lease is looked for as soon as it can be there.
                block_ms = min(now.lease_ms + 1, MAX_BLOCK_MS) if now.is_owned else 0
            generation = generations.running(session.session_id)
        for entry in found:
            yield entry
            if entry.finish_reason is not FinishReason.NONE:
                return
            position = entry.end


async def _last_entries(
    store: Store, session: StoredSession, position: int, now: StoredSession
) -> Sequence[Entry]:
    """What was committed between a look at the entries and one at the finished session; empty: nothing."""
    if position >= len(now.token_ids):
        return ()
    found = await store.tail(session, position)
    if not found:
        raise InternalFault("the store holds tokens without their events", reason="EVENTS_MISSING")
    return found


def _raise_end(generation: Generation) -> None:
    if generation.error is not None:
        raise generation.error
    if generation.end is End.RELEASED:
        raise Unavailable("this gateway is shutting down", reason="DRAINING", retry_after_s=1.0)


async def _current(store: Store, session: StoredSession, *, with_entries: bool = False) -> StoredSession:
    now = await store.read(session.session_id, with_entries=with_entries)
    if now.number != session.number:
        raise turn_over()
    return now


class EventStream:
    """The events of one answer for one client. Closing it, or its end, tells `on_close`, once."""

    def __init__(self, source: AsyncGenerator[Event, None], on_close: Callable[[], None]) -> None:
        self._source = source
        self._on_close: Callable[[], None] | None = on_close

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> Event:
        try:
            return await anext(self._source)
        except BaseException:
            self._closed()
            raise

    async def aclose(self) -> None:
        """The client is gone; what is generated for it goes on for the grace period."""
        self._closed()
        await self._source.aclose()

    def _closed(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
