"""The four calls of `VerifierService`. Proto messages stop here; errors leave through `forerun.wire.status`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import grpc
import structlog

from forerun.core.acceptance import check_law
from forerun.core.limits import check_sampling, check_session_id, check_token_ids
from forerun.core.pacing import Pacing
from forerun.core.types import DraftMessage, FinishReason, Mode, ModelInfo, TokenizerFiles
from forerun.errors import FailedPrecondition, ForerunError, InvalidRequest
from forerun.v1 import verifier_pb2 as pb
from forerun.v1 import verifier_pb2_grpc as rpc
from forerun.wire import convert
from forerun.wire.peer import is_loopback_peer, peer_identities
from forerun.wire.telemetry import extract
from verifier_service import metrics
from verifier_service.session import DecodeOrder, Session
from verifier_service.sessions import Sessions
from verifier_service.stream import DraftStream

log = structlog.get_logger()

Context = grpc.aio.ServicerContext[Any, Any]


class Verifier(rpc.VerifierServiceServicer):
    """Turns calls into sessions and streams; the scheduler does the rest."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: TokenizerFiles,
        sessions: Sessions,
        pacing: Pacing,
        *,
        capacity: int,
        rest_s: float = 0.0,
        trusted_drafters: Iterable[str] = (),
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._sessions = sessions
        self._pacing = pacing
        self.advertised_address = ""  # known once the server listens, before it serves
        self._capacity = capacity
        self._rest_s = rest_s  # of a Decode stream between two messages
        self._trusted = frozenset(trusted_drafters)

    async def GetModel(
        self, request: pb.VerifierServiceGetModelRequest, context: Context
    ) -> pb.VerifierServiceGetModelResponse:
        """Describe the target."""
        del request, context
        return pb.VerifierServiceGetModelResponse(model=convert.model_to_proto(self._model))

    async def GetTokenizer(
        self, request: pb.GetTokenizerRequest, context: Context
    ) -> pb.GetTokenizerResponse:
        """Return the tokenizer's files."""
        del request, context
        return convert.tokenizer_to_proto(self._tokenizer)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> AsyncIterator[pb.DecodeResponse]:
        """Decode one session to its end."""
        order = self._order(request)
        session = self._sessions.admit(order, extract(context))
        try:
            started = pb.Started(
                epoch=order.epoch,
                attach_key=session.attach_key,
                advertised_address=self.advertised_address,
                model=convert.model_to_proto(self._model),
            )
            yield pb.DecodeResponse(started=started)
            async for burst in session.bursts(self._rest_s):
                yield pb.DecodeResponse(settled=[convert.settled_to_proto(settled) for settled in burst])
        finally:
            self._sessions.end(session, FinishReason.CANCELLED)

    async def Verify(
        self, request_iterator: AsyncIterator[pb.VerifyRequest], context: Context
    ) -> AsyncIterator[pb.VerifyResponse]:
        """Take one drafter's drafts for one session and answer with verdicts."""
        first = await anext(aiter(request_iterator), None)
        if first is None or first.WhichOneof("message") != "attach":
            raise InvalidRequest(
                "the first message of Verify must be attach", field="attach", reason="NOT_ATTACHED"
            )
        session, stream = self._attach(first.attach, context)
        log.info("drafter attached", session=session.id, drafter=stream.drafter, source=stream.source)
        metrics.DRAFTERS_ATTACHED.inc()
        reader = asyncio.create_task(self._read(request_iterator, session, stream))
        try:
            window = self._pacing.window(
                stream.survival, stream.num_passes, session.window, len(self._sessions.running)
            )
            snapshot = session.snapshot(stream, self._pacing.burst_length(stream.survival), window)
            yield pb.VerifyResponse(snapshot=convert.snapshot_to_proto(snapshot))
            async for verdict in stream.verdicts():
                yield pb.VerifyResponse(verdict=convert.verdict_to_proto(verdict))
            if reader.done() and (error := reader.exception()) is not None:
                raise error
        finally:
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, ForerunError, grpc.RpcError):
                await reader
            session.detach(stream)
            self._sessions.heard.set()
            metrics.DRAFTERS_ATTACHED.dec()

    async def _read(
        self, requests: AsyncIterator[pb.VerifyRequest], session: Session, stream: DraftStream
    ) -> None:
        """Graft what the drafter sends until it stops; a malformed draft ends its stream and nothing else."""
        try:
            async for request in requests:
                if request.WhichOneof("message") != "draft":
                    raise InvalidRequest("a stream attaches once", field="attach", reason="ATTACHED_TWICE")
                self._graft(session, stream, convert.draft_from_proto(request.draft))
        finally:
            session.detach(stream)

    def _graft(self, session: Session, stream: DraftStream, draft: DraftMessage) -> None:
        if stream.detached:
            return
        if draft.token_ids:  # an empty draft only says that nothing follows the text so far
            check_token_ids(draft.token_ids, self._model.vocab_size, "draft.token_ids")
        if draft.laws and len(draft.laws) != len(draft.token_ids):
            raise InvalidRequest(
                f"{len(draft.laws)} laws for {len(draft.token_ids)} tokens",
                field="draft.laws",
                reason="BAD_DRAFT",
            )
        for law, token_id in zip(draft.laws, draft.token_ids, strict=False):
            check_law(law, token_id)
        laws = draft.laws if stream.laws else ()
        session.tree.graft(stream.number, draft.base, draft.parent, draft.first_id, draft.token_ids, laws)
        turnaround_ns = stream.heard(draft.base, len(draft.token_ids), time.monotonic_ns())
        if turnaround_ns:
            metrics.WIRE_SECONDS.observe(turnaround_ns / 1e9)
        self._sessions.heard.set()

    def _attach(self, attach: pb.Attach, context: Context) -> tuple[Session, DraftStream]:
        session = self._sessions.find(attach.session_id, attach.epoch, attach.attach_key)
        if attach.vocab_fingerprint != self._model.vocab_fingerprint:
            raise FailedPrecondition(
                f"drafter {attach.drafter!r} has vocabulary {attach.vocab_fingerprint or '(none)'}, "
                f"the target {self._model.vocab_fingerprint}; a drafter must share the target's vocabulary",
                reason="VOCABULARY_MISMATCH",
                metadata={"target": self._model.vocab_fingerprint, "drafter": attach.vocab_fingerprint},
            )
        if not attach.drafter:
            raise InvalidRequest("a drafter must give its stable name", field="attach.drafter")
        trusted = is_loopback_peer(context) or not self._trusted.isdisjoint(peer_identities(context))
        laws = attach.ships_laws and trusted and session.order.mode is Mode.REJECTION
        return session, session.attach(
            attach.drafter,
            attach.source,
            self._pacing.survival(attach.source),
            laws=laws,
            first_pass=self._pacing.first_pass(),
        )

    def _order(self, request: pb.DecodeRequest) -> DecodeOrder:
        check_session_id(request.session_id)
        check_token_ids(request.token_ids, self._model.vocab_size, "token_ids")
        sampling = convert.sampling_from_proto(request.sampling)
        check_sampling(sampling)
        if not 1 <= request.prompt_length <= len(request.token_ids):
            raise InvalidRequest(
                f"prompt_length is {request.prompt_length}; it must be 1 to {len(request.token_ids)}, "
                "the number of token_ids",
                field="prompt_length",
            )
        if request.max_tokens < 1:
            raise InvalidRequest("max_tokens is 0; it must be at least 1", field="max_tokens")
        last = request.prompt_length + request.max_tokens
        if last > self._model.max_context:
            raise InvalidRequest(
                f"prompt ({request.prompt_length}) and max_tokens ({request.max_tokens}) make {last} tokens; "
                f"the context is {self._model.max_context}",
                field="max_tokens",
                reason="CONTEXT_EXCEEDED",
            )
        if last > self._capacity:
            raise FailedPrecondition(
                f"the session may need {last} positions; the KV pool holds {self._capacity} (--kv-pool-mib)",
                reason="POOL_TOO_SMALL",
            )
        mode = _mode(request)
        return DecodeOrder(
            session_id=request.session_id,
            epoch=request.epoch,
            token_ids=tuple(request.token_ids),
            prompt_length=request.prompt_length,
            sampling=sampling,
            mode=mode,
            noise_key=request.noise_key,
            last_position=last,
            end_token_ids=frozenset() if request.ignore_end_tokens else frozenset(self._model.end_token_ids),
            no_draft=request.no_draft,
        )


def _mode(request: pb.DecodeRequest) -> Mode:
    mode = convert.mode_from_proto(request.mode)
    if (mode is Mode.GREEDY) != (request.sampling.temperature == 0):
        raise InvalidRequest(
            f"mode {mode.name} does not fit temperature {request.sampling.temperature}; greedy is temperature 0",
            field="mode",
        )
    convert.check_noise_key(request.noise_key, mode)
    return mode
