"""One answer on its way: verifier → hold-back → commit → those who read along.

A generation runs in a task of its own. Clients come and go without touching it; it ends with the answer, when
another gateway owns the session, or when it is told to stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum, auto

import structlog

from forerun.core.types import FinishReason
from forerun.errors import (
    FailedPrecondition,
    ForerunError,
    InternalFault,
    Overloaded,
    Superseded,
    Unavailable,
)
from forerun.v1 import drafter_pb2, sampling_pb2, verifier_pb2
from forerun.wire.convert import model_from_proto, sampling_to_proto
from forerun.wire.telemetry import tracer
from gateway import metrics
from gateway.assistance import assist
from gateway.decoding import Decoding, VerifierLost, decode
from gateway.holdback import Holdback
from gateway.ledger import Ledger
from gateway.patience import Patience
from gateway.replica import Replica
from gateway.router import Router
from gateway.store.entry import Entry
from gateway.store.session import StoredSession
from gateway.store.store import Store
from gateway.text import Tokenizer

# Refusals that another verifier, or the same one later, may not repeat.
_PASSING = (Unavailable, Overloaded, InternalFault, Superseded, FailedPrecondition)
# Of refusals those that are about the one verifier: it came back with a smaller context than it had said.
_ITS_OWN = ("CONTEXT_EXCEEDED",)
# Decode calls in a row that brought no token are this far apart.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 2.0
# A fault that is not about reaching a verifier is believed after so many calls.
_MAX_FAULTS = 3


class End(Enum):
    """Why a generation ended."""

    FINISHED = auto()
    FENCED = auto()  # another owner, or the session is deleted
    DETACHED = auto()  # no client for the grace period; resumable
    RELEASED = auto()  # this gateway shuts down; resumable elsewhere
    FAILED = auto()  # `error` says why; resumable


class Generation:
    """Decodes one turn of one session that this gateway owns. Not running before `start`."""

    def __init__(
        self, session: StoredSession, store: Store, router: Router, tokenizer: Tokenizer, patience: Patience
    ) -> None:
        """`session` was read with its entries, and its epoch is ours."""
        self.session_id = session.session_id
        self.number = session.number
        self.end: End | None = None
        self.error: ForerunError | None = None
        self._turn = session.turn
        self._ledger = Ledger(session, store, patience.store_s)
        self._beat_s = store.lease_s / 3
        self._router = router
        self._tokenizer = tokenizer
        self._patience = patience
        self._stopping: End | None = None
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("gateway.generation").bind(session_id=self.session_id)

    def start(self, on_end: Callable[[Generation], None]) -> None:
        """Run; `on_end` is called once, when `end` is set and the lease is no longer this generation's."""
        self._task = asyncio.create_task(self._run(on_end), name=f"generation {self.session_id}")

    def stop(self, why: End) -> None:
        """End soon: cancel the Decode and give the lease up."""
        if self._task is not None and self._stopping is None and self.end is None:
            self._stopping = why
            self._task.cancel()

    async def wait(self) -> None:
        """Return when it has ended."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def entries_beyond(self, length: int) -> Sequence[Entry]:
        """Committed entries that end beyond `length` tokens, waiting for one; empty once it has ended.

        All readers share the one list, so a slow one costs nothing.
        """
        while not (found := self._ledger.beyond(length)) and self.end is None:
            await self._changed.wait()
        return found

    async def _run(self, on_end: Callable[[Generation], None]) -> None:
        metrics.RUNNING.inc()
        end = End.FAILED
        beating = self._aside(self._beat())
        try:
            with tracer().start_as_current_span("generation", attributes={"session_id": self.session_id}):
                end = await self._decode_on()
        except asyncio.CancelledError:
            end = self._stopping or End.RELEASED
        except ForerunError as error:
            self.error = error
            self._log.warning("generation failed", reason=error.reason, error=error.message)
        except Exception as error:  # noqa: BLE001 - contained in this session, logged, shown as a fault
            self._log.exception("generation failed", exc_info=error)
            self.error = InternalFault("internal fault; the server's log has it", reason="GENERATION_FAILED")
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            if end in {End.DETACHED, End.RELEASED, End.FAILED}:
                await self._ledger.release(detached=end is not End.RELEASED)
            metrics.RUNNING.dec()
            metrics.ENDED.labels(end.name.lower()).inc()
            self._log.info("generation ended", end=end.name, length=len(self._ledger.token_ids))
            self.end = end
            on_end(self)
            self._wake()

    async def _beat(self) -> None:
        """Keep the lease between commits; stop when it is another's."""
        while True:
            await asyncio.sleep(self._beat_s)
            if not await self._ledger.beat():
                self.stop(End.FENCED)
                return

    async def _decode_on(self) -> End:
        """Decode to the end, moving on whenever a verifier is lost. Raises what that does not mend."""
        loop = asyncio.get_running_loop()
        lost: set[str] = set()
        give_up_at, pause, faults = loop.time() + self._patience.verifier_s, _FIRST_PAUSE_S, 0
        while True:
            length = len(self._ledger.token_ids)
            replica = await self._next_verifier(lost)
            try:
                return await self._decode(replica)
            except VerifierLost as loss:
                error = loss.error
            self._log.warning("verifier lost", verifier=replica.address, reason=error.reason)
            if not isinstance(error, _PASSING) and error.reason not in _ITS_OWN:
                # No verifier will decode this, ever: the session ends with it.
                await self._ledger.refuse()
                raise error
            if isinstance(error, Unavailable):
                self._router.report_failure(replica)
            if len(self._ledger.token_ids) > length:
                lost.clear()
                give_up_at, pause, faults = loop.time() + self._patience.verifier_s, _FIRST_PAUSE_S, 0
            lost.add(replica.address)
            faults += isinstance(error, InternalFault)
            if loop.time() >= give_up_at or faults >= _MAX_FAULTS:
                raise error
            await asyncio.sleep(max(pause, min(error.retry_after_s or 0.0, _LAST_PAUSE_S)))
            pause = min(pause * 2, _LAST_PAUSE_S)
            metrics.FAILOVERS.inc()
            if not await self._ledger.claim_next_epoch():
                return End.FENCED

    async def _next_verifier(self, lost: set[str]) -> Replica:
        """One whose context holds the whole answer.

        One of equal numerics before any other, the last one before the least loaded.
        """
        return await self._router.verifier(
            self.session_id,
            model=self._turn.model.name,
            vocab_fingerprint=self._turn.model.vocab_fingerprint,
            context=self._turn.prompt_length + self._turn.max_tokens,
            numerics=self._ledger.numerics,
            prefer=self._ledger.verifier,
            exclude=lost,
            timeout_s=self._patience.verifier_s,
        )

    async def _decode(self, replica: Replica) -> End:
        """One Decode call, to the session's end or until another owns it. Raises VerifierLost."""
        holdback = Holdback(self._tokenizer, self._turn, tuple(self._ledger.token_ids))
        async with decode(replica, self._decode_request(), self._patience) as decoding:
            started = await decoding.started()
            model = model_from_proto(started.model)
            if model.vocab_fingerprint != self._turn.model.vocab_fingerprint:
                raise VerifierLost(FailedPrecondition("another vocabulary", reason="VOCABULARY_MISMATCH"))
            if not await self._ledger.place(replica.address, model.numerics, model.exact):
                return End.FENCED
            helping = None if self._turn.no_draft else self._aside(self._assist(started))
            try:
                return await self._commit_all(decoding, holdback)
            finally:
                if helping is not None:
                    helping.cancel()
                    await asyncio.gather(helping, return_exceptions=True)

    async def _commit_all(self, decoding: Decoding, holdback: Holdback) -> End:
        while True:
            settled = await decoding.settled()
            length = holdback.length
            for one in settled:
                if one.base != length:
                    gap = f"the verifier settled at {one.base}, not {length}"
                    raise VerifierLost(InternalFault(gap, reason="PROTOCOL"))
                length += len(one.token_ids)
            entry = holdback.take(settled)
            if entry is None:
                continue
            if not await self._ledger.commit(entry):
                return End.FENCED
            self._wake()
            if entry.finish_reason is not FinishReason.NONE:
                return End.FINISHED

    def _decode_request(self) -> verifier_pb2.DecodeRequest:
        turn = self._turn
        return verifier_pb2.DecodeRequest(
            session_id=self.session_id,
            epoch=self._ledger.epoch,
            token_ids=self._ledger.token_ids,
            prompt_length=turn.prompt_length,
            sampling=sampling_to_proto(turn.sampling),
            mode=sampling_pb2.Mode.ValueType(turn.mode.value),
            noise_key=turn.noise_key,
            max_tokens=turn.max_tokens,
            ignore_end_tokens=turn.ignore_end_tokens,
            no_draft=turn.no_draft,
        )

    async def _assist(self, started: verifier_pb2.Started) -> None:
        request = drafter_pb2.AssistRequest(
            session_id=self.session_id,
            epoch=started.epoch,
            verifier_address=started.advertised_address,
            attach_key=started.attach_key,
            vocab_fingerprint=started.model.vocab_fingerprint,
        )
        await assist(self._router, request, self._patience)

    def _aside(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Work beside the answer: a fault in it is logged and stops nothing."""

        def log_fault(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (fault := task.exception()) is not None:
                self._log.error("fault beside the generation", exc_info=fault)

        task = asyncio.create_task(work)
        task.add_done_callback(log_fault)
        return task

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
