"""One decoding session: its settled text, its draft tree, its drafters' streams and its listener."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from opentelemetry.context import Context

from forerun.core.acceptance import Decider, Outcome, decider
from forerun.core.draft_tree import DraftTree, Node
from forerun.core.pacing import Outlook
from forerun.core.survival import Survival
from forerun.core.types import FinishReason, Mode, Sampling, Settled, Snapshot, Verdict
from forerun.errors import ForerunError
from verifier_service.own_lookup import OwnLookup
from verifier_service.stream import DraftStream, Source

NOTHING = Survival()  # of a session without drafts; never consulted for a plan


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """What a `Decode` call asks for, validated. `last_position`: settled length at which it ends at the latest."""

    session_id: str
    epoch: int
    token_ids: tuple[int, ...]
    prompt_length: int
    sampling: Sampling
    mode: Mode
    noise_key: bytes
    last_position: int
    end_token_ids: frozenset[int]
    no_draft: bool = False  # the verifier's own look-up stays out of it

    @property
    def already_over(self) -> FinishReason:
        """How the text ended before this call; NONE if it goes on."""
        answer = self.token_ids[self.prompt_length :]
        if answer and answer[-1] in self.end_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.last_position else FinishReason.NONE


@dataclass(slots=True, eq=False)
class Session:
    """State of one `Decode` call.

    Invariants: `computed` leading positions of the settled text have KV in the engine; `computed <
    tree.base`, so the last settled token is always fed before its successor is drawn; nothing is settled
    after `finished`.
    """

    order: DecodeOrder
    window: int
    trace: Context = field(default_factory=Context)
    attach_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    computed: int = 0
    opened: bool = False  # the engine knows it
    finished: bool = False
    ready_ns: int = 0  # since when it could have been in a pass
    wait_ns: int = 0  # of that, time spent waiting for drafts
    num_prefilled: int = 0  # prompt rows computed since its last settled token
    streams: dict[int, DraftStream] = field(default_factory=dict)
    lookup: OwnLookup | None = None
    tree: DraftTree = field(init=False)
    decider: Decider = field(init=False)
    _outbox: asyncio.Queue[Settled | ForerunError] = field(default_factory=asyncio.Queue)
    _over: asyncio.Event = field(default_factory=asyncio.Event)  # the last thing to tell is in the outbox
    _last_stream: int = 0

    def __post_init__(self) -> None:
        order = self.order
        self.tree = DraftTree(order.token_ids, merge=order.mode is not Mode.REJECTION)
        self.decider = decider(order.mode, order.sampling, order.noise_key, secrets.token_bytes(32))

    @property
    def id(self) -> str:
        return self.order.session_id

    @property
    def key(self) -> str:
        """Its name in the engine; a takeover is another session there and finds the KV by its tokens."""
        return f"{self.order.session_id}#{self.order.epoch}"

    @property
    def base(self) -> int:
        """Settled length, prompt included."""
        return self.tree.base

    @property
    def num_pending(self) -> int:
        """Settled tokens that must be fed before the next token can be drawn; at least 1."""
        return self.base - self.computed

    def plan(self, length: int) -> tuple[tuple[Node, ...], int | None]:
        """Return the chain of at most `length` to check now and, in rejection mode, the stream whose it is.

        The stream is chosen by what earlier passes accepted and the length by counts alone, never by the
        tokens drafted (selection rule).
        """
        source = self.proven_source()
        if source is None:
            return (), None
        number = None if self.tree.merge else source.number
        length = min(length, self.room)
        return self.tree.plan(length, number), number

    def look_up(self, survival: Survival) -> None:
        """From now on the verifier drafts for this session itself where no drafter has."""
        self.lookup = OwnLookup(self.tree, survival, self.window, self.order.end_token_ids)

    def proven_stream(self) -> DraftStream | None:
        """The attached stream that earlier passes accepted most of; the first to attach on ties."""
        return max(self.streams.values(), key=lambda s: (s.num_accepted, -s.number), default=None)

    def proven_source(self) -> Source | None:
        """The source to check where one must be chosen: a drafter that has not been stopped, else look-up."""
        proven = self.proven_stream()
        return proven if proven and (proven.window or not self.lookup) else self.lookup

    def at_hand(self) -> Outlook:
        """What a pass made now could check."""
        source = self.proven_source()
        number = source.number if source and not self.tree.merge else None
        chain = self.tree.plan(self.room, number)
        return Outlook(self._survival(chain[0]), len(chain)) if chain else Outlook(NOTHING, 0)

    def outlook(self) -> Outlook:
        """What is at hand, or what a drafter owes where that is nothing, or looked up and promises less."""
        proven = self.proven_stream()
        if proven is None or not self.owed():
            return self.at_hand()
        return Outlook(proven.survival, 0, proven.turnaround_ns / 1000, proven.answers)

    def owed(self) -> bool:
        """Whether the drafter that counts has not yet spoken about this text, and nothing better is there to check."""
        proven = self.proven_stream()
        if proven is None or not proven.turnaround_ns or not proven.owes(self.base):
            return False
        first, _ = self.plan(1)
        if not first:
            return True
        here = self._survival(first[0])
        return self.lookup is not None and here is self.lookup.survival and proven.promise > here.at(0)

    def _survival(self, node: Node) -> Survival:
        """The estimate of the best of the sources that drafted a node."""
        drafted = [source.survival for source in self._sources() if source.number in node.owners]
        return drafted[0] if len(drafted) == 1 else max(drafted, key=lambda survival: survival.at(0))

    def _sources(self) -> list[Source]:
        return [*self.streams.values(), *([self.lookup] if self.lookup else [])]

    @property
    def room(self) -> int:
        """Drafted tokens that could still be settled before the closing token."""
        return max(self.order.last_position - self.base - 1, 0)

    def credit(self, source: Source, outcome: Outcome) -> None:
        """Count how many of the tested and of the accepted nodes were this source's."""
        accepted = sum(source.number in node.owners for node in outcome.accepted)
        tested = accepted + any(source.number in node.owners for node in outcome.refused)
        brought = any(source.number == node.first for node in outcome.accepted)
        source.learn(tested, accepted, brought=brought)

    def source_of(self, outcome: Outcome) -> str:
        """Name the source whose token was tested first; empty when none was."""
        owners = next((node.owners for node in (*outcome.accepted, *outcome.refused)), set[int]())
        return next((s.source for s in self._sources() if s.number in owners), "")

    def cut(self, token_ids: Sequence[int]) -> tuple[tuple[int, ...], FinishReason]:
        """Return the leading tokens up to the earliest end, and which end that is.

        An end token that lies before the last position wins over the length; it is part of the text.
        """
        kept: list[int] = []
        for token_id in token_ids:
            kept.append(token_id)
            if token_id in self.order.end_token_ids:
                return tuple(kept), FinishReason.STOP
            if self.base + len(kept) >= self.order.last_position:
                return tuple(kept), FinishReason.LENGTH
        return tuple(kept), FinishReason.NONE

    def attach(
        self, drafter: str, source: str, survival: Survival, *, laws: bool, first_pass: int = 0
    ) -> DraftStream:
        """Join a drafter; its older stream, if any, is replaced."""
        for old in [s for s in self.streams.values() if s.drafter == drafter]:
            self.detach(old)
        self._last_stream += 1
        stream = DraftStream(self._last_stream, drafter, source, survival, laws=laws, first_pass=first_pass)
        self.streams[stream.number] = stream
        self.tree.open_stream(stream.number, self.window)
        return stream

    def detach(self, stream: DraftStream) -> None:
        """Forget a drafter: its nodes leave the tree unless another owns them too."""
        if self.streams.pop(stream.number, None) is not None:
            self.tree.close_stream(stream.number)
        stream.close()

    def snapshot(self, stream: DraftStream, next_length: int, window: int) -> Snapshot:
        """All a drafter that attaches now must know; counts as telling it."""
        stream.told(self.base, time.monotonic_ns())
        stream.window = window
        self.tree.set_window(stream.number, window)
        order = self.order
        return Snapshot(
            stream=stream.number,
            epoch=order.epoch,
            token_ids=tuple(self.tree.token_ids),
            mode=order.mode,
            sampling=order.sampling,
            noise_key=order.noise_key,
            window=window,
            last_position=order.last_position,
            end_token_ids=tuple(sorted(order.end_token_ids)),
            next_length=next_length,
        )

    def tell(self, settled: Settled) -> None:
        """Queue what a pass settled for the gateway; bounded by the tokens the session has left."""
        self._outbox.put_nowait(settled)
        if settled.finish_reason is not FinishReason.NONE:
            self._over.set()

    def fail(self, error: ForerunError) -> None:
        """End the session with an error, after what was settled before."""
        self._outbox.put_nowait(error)
        self._over.set()

    async def bursts(self, rest_s: float) -> AsyncIterator[tuple[Settled, ...]]:
        """Yield what passes settle, in order, until the end; raise the error the session ended with.

        The first comes at once; after each the stream rests for `rest_s`, and what is settled meanwhile comes
        together. An end is not waited with.
        """
        while True:
            items = [await self._outbox.get()]
            while not self._outbox.empty():
                items.append(self._outbox.get_nowait())
            burst = tuple(item for item in items if isinstance(item, Settled))
            if burst:
                yield burst
            if isinstance(items[-1], ForerunError):
                raise items[-1]
            if burst[-1].finish_reason is not FinishReason.NONE:
                return
            if rest_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(rest_s):
                        await self._over.wait()

    def end_streams(self, reason: FinishReason) -> None:
        """Tell every drafter that the session is over."""
        for stream in list(self.streams.values()):
            if not stream.said_end:
                untold = tuple(self.tree.token_ids[stream.told_base :])
                stream.push(Verdict(base=stream.told_base, token_ids=untold, finish_reason=reason))
            self.detach(stream)
