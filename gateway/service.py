"""The gateway behind both doors: sessions, whoever asks and wherever they are decoded."""

from __future__ import annotations

import asyncio
import secrets
import time

from forerun.core.limits import check_session_id
from forerun.core.types import Acceptance, ModelInfo
from forerun.errors import (
    AlreadyRunning,
    FailedPrecondition,
    ForerunError,
    InvalidRequest,
    OffsetBeyondEnd,
    Unavailable,
)
from gateway import metrics
from gateway.attendance import Attendance
from gateway.following import EventStream, events
from gateway.generation import End, Generation
from gateway.patience import Patience
from gateway.request import GenerationRequest, Prepared, check, digest, validate
from gateway.router import Router
from gateway.store.session import StoredSession
from gateway.store.store import Begun, Claim, Store, turn_over
from gateway.text import Tokenizer, visible

# Longer prompts are tokenized off the event loop.
_LONG_CHARS = 4096


class Gateway:
    """One gateway process. Everything it must not lose is in the store; everything here may be.

    The caller starts and closes `router` and closes `store`.
    """

    def __init__(
        self,
        store: Store,
        router: Router,
        *,
        acceptance: Acceptance = Acceptance.AUTO,
        patience: Patience | None = None,
    ) -> None:
        """`acceptance`: for requests that leave it open."""
        self._store = store
        self._router = router
        self._acceptance = acceptance
        self._patience = patience or Patience()
        self._generations: dict[str, Generation] = {}
        self._attendance = Attendance(self._patience.detach_grace_s, self._detach)
        self._draining = False

    def models(self) -> list[ModelInfo]:
        """What can be asked for now, one per name."""
        return self._router.models()

    async def healthy(self) -> bool:
        """Whether a new request would find Redis and a verifier."""
        try:
            await self._store.ping()
        except Unavailable:
            return False
        return bool(self._router.models()) and not self._draining

    async def generate(self, request: GenerationRequest) -> EventStream:
        """The events of the answer to this request. The session is in Redis when this returns.

        Raises InvalidRequest, NotFound (model, session), AlreadyRunning, FailedPrecondition, Unavailable.
        """
        try:
            stream = await self._generate(request)
        except ForerunError as error:
            metrics.REQUESTS.labels(error.reason.lower()).inc()
            raise
        metrics.REQUESTS.labels("accepted").inc()
        return stream

    async def resume(self, session_id: str, offset: int) -> EventStream:
        """The events of a session's current answer from `offset` tokens on; takes it over if nobody has it.

        Raises NotFound, OffsetBeyondEnd, InvalidRequest, Unavailable.
        """
        self._refuse_when_draining()
        check_session_id(session_id)
        session = await self._store.read(session_id)
        committed = len(session.answer_ids)
        if offset < 0:
            raise InvalidRequest("offset must not be negative", reason="OUT_OF_RANGE", field="offset")
        if offset > committed:
            raise OffsetBeyondEnd(
                f"offset {offset} is beyond the {committed} committed tokens",
                reason="OFFSET_BEYOND_END",
                field="offset",
                metadata={"committed": str(committed)},
            )
        tokenizer = await self._router.tokenizer(session.turn.model.name)
        return self._follow(session, offset, tokenizer)

    async def get(self, session_id: str, include_passes: bool = False) -> StoredSession:
        """The session as stored, with its entries if passes are wanted. Raises NotFound, Unavailable."""
        check_session_id(session_id)
        return await self._store.read(session_id, with_entries=include_passes)

    async def text_of(self, session: StoredSession) -> str:
        """The visible text of a session's answer so far."""
        tokenizer = await self._router.tokenizer(session.turn.model.name)
        return visible(tokenizer, session.answer_ids, session.finish_reason, session.cut)

    async def token_texts(self, session: StoredSession, token_ids: list[int]) -> list[str]:
        """Each token by itself, as people read it."""
        tokenizer = await self._router.tokenizer(session.turn.model.name)
        return [tokenizer.token_text(token_id) for token_id in token_ids]

    async def delete(self, session_id: str) -> None:
        """The session is forgotten and no longer decoded, here or elsewhere. Raises NotFound, Unavailable."""
        check_session_id(session_id)
        await self._store.delete(session_id)
        generation = self._generations.get(session_id)
        if generation is not None:
            generation.stop(End.FENCED)

    async def drain(self, grace_s: float) -> None:
        """Take nothing new; return once no generation runs: after `grace_s` they are stopped."""
        self._draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._all_ended()
        except TimeoutError:
            for generation in list(self._generations.values()):
                generation.stop(End.RELEASED)
            await self._all_ended()

    def running(self, session_id: str) -> Generation | None:
        """The generation of a session, if it runs here."""
        return self._generations.get(session_id)

    async def go_on(self, session: StoredSession) -> None:
        """Take the session over if nobody works on it. Raises Unavailable when this gateway takes no more."""
        self._refuse_when_draining()
        claimed = await self._store.take_over(session.session_id)
        if claimed.claim is not Claim.TAKEN:
            return
        metrics.TAKEOVERS.inc()
        await self._start(session.session_id)

    async def _generate(self, request: GenerationRequest) -> EventStream:
        began = time.perf_counter()
        self._refuse_when_draining()
        check(request)
        if request.session_id:
            return await self._add_turn(request, began)
        model, tokenizer = await self._model(request.model)
        prepared = await self._prepare(request, model, tokenizer)
        session_id = secrets.token_hex(16)
        if request.request_id:
            session_id = await self._store.claim_request(request.request_id, session_id)
        created = await self._store.create(
            session_id, prepared.turn, prepared.token_ids, elapsed_us=_elapsed_us(began)
        )
        if created:
            return self._follow(await self._start(session_id), 0, tokenizer)
        return await self._join(request, await self._store.read(session_id))

    async def _add_turn(self, request: GenerationRequest, began: float) -> EventStream:
        session = await self._store.read(request.session_id)
        if request.request_id and session.turn.request_id == request.request_id:
            return await self._join(request, session)
        if session.is_owned:
            raise _busy(session.session_id)
        model, tokenizer = await self._model(request.model or session.turn.model.name)
        if model.vocab_fingerprint != session.turn.model.vocab_fingerprint:
            raise FailedPrecondition(
                "the conversation was held with another vocabulary", reason="VOCABULARY_MISMATCH"
            )
        prepared = await self._prepare(request, model, tokenizer, session.token_ids)
        begun, _ = await self._store.begin_turn(
            session, prepared.turn, prepared.token_ids, elapsed_us=_elapsed_us(began)
        )
        if begun is Begun.BUSY:
            raise _busy(session.session_id)
        if begun is Begun.JOINED:
            return await self._join(request, await self._store.read(session.session_id))
        return self._follow(await self._start(session.session_id), 0, tokenizer)

    async def _join(self, request: GenerationRequest, session: StoredSession) -> EventStream:
        """The answer that an earlier request of the same id began."""
        if session.turn.request_id != request.request_id:
            raise turn_over()
        if session.turn.request_digest != digest(request):
            raise AlreadyRunning(
                f"request_id {request.request_id!r} belongs to a different request: send that one again, or give "
                "this one an id of its own",
                reason="REQUEST_ID_REUSED",
                field="request_id",
            )
        return self._follow(session, 0, await self._router.tokenizer(session.turn.model.name))

    async def _model(self, name: str) -> tuple[ModelInfo, Tokenizer]:
        """The model asked for and its tokenizer; waits for a verifier if there is none at all."""
        patience = self._patience
        await self._router.wait_ready(patience.verifier_s, unreached_s=patience.unreached_s)
        tokenizer = await self._router.tokenizer(name)
        for model in self._router.models():
            if name in ("", model.name):
                return model, tokenizer
        raise self._router.none_serves(name)

    async def _prepare(
        self,
        request: GenerationRequest,
        model: ModelInfo,
        tokenizer: Tokenizer,
        history: tuple[int, ...] = (),
    ) -> Prepared:
        num_chars = len(request.prompt or "") + sum(len(text) for _, text in request.messages or ())

        def prepare() -> Prepared:
            return validate(request, model, tokenizer, history=history, acceptance=self._acceptance)

        return await asyncio.to_thread(prepare) if num_chars > _LONG_CHARS else prepare()

    async def _start(self, session_id: str) -> StoredSession:
        """Decode a session whose lease was just given to this gateway; returns it as read."""
        session = await self._store.read(session_id, with_entries=True)
        tokenizer = await self._router.tokenizer(session.turn.model.name)
        if self._draining:  # begun meanwhile; another gateway may go on
            await self._store.release(session_id, session.epoch, detached=False)
            self._refuse_when_draining()
        generation = Generation(session, self._store, self._router, tokenizer, self._patience)
        self._generations[session_id] = generation
        generation.start(self._ended)
        self._attendance.watch(session_id)
        return session

    def _ended(self, generation: Generation) -> None:
        # A next turn's generation may stand in its place by now.
        if self._generations.get(generation.session_id) is generation:
            del self._generations[generation.session_id]
            self._attendance.forget(generation.session_id)

    async def _all_ended(self) -> None:
        while self._generations:
            await asyncio.gather(*(generation.wait() for generation in self._generations.values()))

    def _follow(self, session: StoredSession, offset: int, tokenizer: Tokenizer) -> EventStream:
        self._attendance.enter(session.session_id)
        generation = self._generations.get(session.session_id)
        source = events(session, offset, self._store, self, tokenizer, generation)
        return EventStream(source, lambda: self._attendance.leave(session.session_id))

    def _detach(self, session_id: str) -> None:
        generation = self._generations.get(session_id)
        if generation is not None:
            generation.stop(End.DETACHED)

    def _refuse_when_draining(self) -> None:
        if self._draining:
            raise Unavailable("this gateway is shutting down", reason="DRAINING", retry_after_s=1.0)


def _busy(session_id: str) -> AlreadyRunning:
    return AlreadyRunning(
        f"session {session_id} is answering another request", reason="SESSION_BUSY", field="session_id"
    )


def _elapsed_us(began: float) -> int:
    return round((time.perf_counter() - began) * 1e6)
