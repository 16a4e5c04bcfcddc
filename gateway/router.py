"""Which verifier decodes a session and which drafter helps it.

Every replica is watched (`gateway.replica`); choosing is a matter of what is known now, and only waiting
for a verifier takes time. Load is what this gateway itself runs there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import TypeVar

import grpc

from forerun.core.types import ModelInfo
from forerun.errors import InvalidRequest, NotFound, Unavailable
from forerun.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from forerun.wire.convert import model_from_proto
from forerun.wire.tls import Tls
from gateway.affinity import Affinity
from gateway.misfits import Misfits
from gateway.pool import Pool
from gateway.replica import Description, Replica
from gateway.targets import Directory, Resolve, Targets, resolve_name
from gateway.text import Tokenizer
from gateway.tokenizer_cache import TokenizerCache

_T = TypeVar("_T")

VERIFIER_SERVICE = "forerun.v1.VerifierService"
DRAFTER_SERVICE = "forerun.v1.DrafterService"
# What a client is told to wait when no verifier serves.
RETRY_AFTER_S = 2.0
# Of many addresses that cannot be reached, a client is told of these.
_MOST_TOLD = 4


async def _describe_verifier(channel: grpc.aio.Channel, deadline_s: float) -> Description:
    stub = verifier_pb2_grpc.VerifierServiceStub(channel)
    reply = await stub.GetModel(verifier_pb2.VerifierServiceGetModelRequest(), timeout=deadline_s)
    return Description(model_from_proto(reply.model))


async def _describe_drafter(channel: grpc.aio.Channel, deadline_s: float) -> Description:
    stub = drafter_pb2_grpc.DrafterServiceStub(channel)
    reply = await stub.GetModel(drafter_pb2.DrafterServiceGetModelRequest(), timeout=deadline_s)
    return Description(model_from_proto(reply.model), reply.source)


class Router:
    """The replicas of two flags, and the choice among them. One event loop owns it."""

    def __init__(self, verifiers: str, drafters: str, tls: Tls, *, resolve: Resolve = resolve_name) -> None:
        """`verifiers`, `drafters`: as `gateway.targets` reads them.

        Raises InvalidRequest for a bad address.
        """
        targets = Targets.parse(verifiers, "verifiers")
        if not targets.fixed and not targets.names:
            raise InvalidRequest("name at least one verifier", reason="NO_VERIFIERS", field="verifiers")
        helpers = Targets.parse(drafters, "drafters")
        self._verifiers = Pool(
            VERIFIER_SERVICE, _describe_verifier, Directory(targets, resolve), tls, self._wake
        )
        self._drafters = Pool(
            DRAFTER_SERVICE, _describe_drafter, Directory(helpers, resolve), tls, self._wake
        )
        self._tokenizers = TokenizerCache()
        self._last_verifier = Affinity()
        self._last_drafter = Affinity()
        self._misfits = Misfits()
        self._changed = asyncio.Event()
        self._order = 0
        self._last_pick: dict[str, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to watch; replicas become available as their health is heard."""
        for pool in (self._verifiers, self._drafters):
            self._tasks.append(asyncio.create_task(pool.follow()))

    async def close(self) -> None:
        """Every watch has ended and every channel is closed, calls on them cancelled."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    def models(self) -> list[ModelInfo]:
        """What can be asked for now, one per name: that with the longest context."""
        serving = sorted(
            (model for _, model in self._verifiers.serving()), key=lambda model: model.max_context
        )
        return list({model.name: model for model in serving}.values())

    async def wait_ready(self, timeout_s: float, *, unreached_s: float | None = None) -> bool:
        """Whether a verifier serves, waiting up to `timeout_s` for one.

        Only up to `unreached_s`, where given, while none ever served and none can be reached: one that starts,
        drains or is started again is always waited for.
        """
        return await self._wait(lambda: self._verifiers.serving() or None, timeout_s, unreached_s) is not None

    def troubles(self) -> dict[str, str]:
        """Why verifiers cannot be reached, by address; those that can, or were not tried, are not in it."""
        return dict(self._verifiers.troubles())

    def none_serves(self, model: str, *, context: int = 0) -> Unavailable:
        """The error of a request for a model by name ("": any) that no verifier serves now, and why not.

        `context`: tokens that its context must hold, where that is what none of those that serve can do.
        """
        what = f"no verifier serves {model!r} now" if model else "no verifier is ready now"
        named = [served for _, served in self._verifiers.serving() if model in ("", served.name)]
        if named and all(served.max_context < context for served in named):
            what = f"no verifier with a context of {context} tokens serves {model!r} now"
        troubles = [f"{address} {reason}" for address, reason in self._verifiers.troubles()]
        if len(troubles) > _MOST_TOLD:
            troubles[_MOST_TOLD:] = [f"{len(troubles) - _MOST_TOLD} more"]
        why = f": {', '.join(troubles)}" if troubles else ""
        return Unavailable(what + why, reason="NO_VERIFIER", retry_after_s=RETRY_AFTER_S)

    async def tokenizer(self, model: str) -> Tokenizer:
        """The tokenizer of a model by name ("": the one served), fetched once.

        A tokenizer once fetched stays available while its verifiers are away. Raises NotFound for a name no
        replica is known to serve, InvalidRequest for "" among several, Unavailable when none serves, which for
        "" is while all are away.
        """
        known = self._named(model)
        if not known or not (model or self._verifiers.serving()):
            raise self.none_serves(model)
        served, replicas = known[0][1], [r for r, _ in known if r.model is not None]
        if not replicas and not self._tokenizers.holds(served):
            raise self.none_serves(served.name)
        return await self._tokenizers.get(served, replicas)

    async def verifier(
        self,
        session_id: str,
        *,
        model: str,
        timeout_s: float,
        context: int = 0,
        numerics: str = "",
        vocab_fingerprint: str = "",
        prefer: str = "",
        exclude: Collection[str] = (),
    ) -> Replica:
        """The verifier to decode a session on; remembered as the session's own.

        Only replicas of that `model` (and `vocab_fingerprint`, where given) qualify whose context holds `context`
        tokens; addresses in `exclude` only when there is no other. Of several: equal `numerics` (where given)
        before unequal, then the session's last verifier (`prefer`, or as remembered here), then the least loaded.
        Waits up to `timeout_s` for one to serve, then raises Unavailable; raises NotFound and InvalidRequest as
        `tokenizer` does.
        """

        def pick() -> Replica | None:
            fitting = [
                (replica, served)
                for replica, served in self._named(model)
                if replica.model is not None
                and vocab_fingerprint in ("", served.vocab_fingerprint)
                and context <= served.max_context
            ]
            home = prefer or self._last_verifier.of(session_id)
            return self._least(
                fitting,
                lambda replica, served: (
                    replica.address in exclude,
                    numerics not in ("", served.numerics),
                    replica.address != home,
                ),
            )

        replica = await self._wait(pick, timeout_s)
        if replica is None:
            raise self.none_serves(model, context=context)
        self._last_verifier.remember(session_id, replica.address)
        return replica

    def drafters(
        self, session_id: str, *, vocab_fingerprint: str, exclude: Collection[str] = (), limit: int = 1
    ) -> list[Replica]:
        """Up to `limit` drafters that fit the vocabulary (look-up sources fit every one); none is normal.

        The session's last one before the least loaded.
        """
        fitting = [
            (replica, model)
            for replica, model in self._drafters.serving()
            if replica.address not in exclude and model.vocab_fingerprint in ("", vocab_fingerprint)
        ]
        home = self._last_drafter.of(session_id)
        chosen: list[Replica] = []

        def is_strange(replica: Replica, _model: ModelInfo) -> tuple[bool, ...]:
            return (replica.address != home,)

        while len(chosen) < limit and (best := self._least(fitting, is_strange)):
            chosen.append(best)
            fitting = [entry for entry in fitting if entry[0] is not best]
        if chosen:
            self._last_drafter.remember(session_id, chosen[0].address)
        return chosen

    def drafter(
        self, session_id: str, *, vocab_fingerprint: str, exclude: Collection[str] = ()
    ) -> Replica | None:
        """The one drafter to ask; None when none fits."""
        found = self.drafters(session_id, vocab_fingerprint=vocab_fingerprint, exclude=exclude)
        return found[0] if found else None

    def report_failure(self, replica: Replica) -> None:
        """Keep a replica out of every choice until its health says SERVING again."""
        replica.report_failure()

    def _named(self, model: str) -> list[tuple[Replica, ModelInfo]]:
        """Replicas serving that model; none serving: those known to have served it, while they are away."""
        serving = self._verifiers.serving()
        known = [(r, r.last_model) for r in self._verifiers.replicas if r.last_model is not None]
        names = sorted({m.name for _, m in serving or known})
        if not model and len(names) > 1:
            raise InvalidRequest(
                f"say which model: {', '.join(names)}", reason="MODEL_AMBIGUOUS", field="model"
            )
        wanted = model or (names[0] if names else "")
        found = [(r, m) for r, m in serving if m.name == wanted] or [
            (r, m) for r, m in known if m.name == wanted
        ]
        if not found and serving:
            raise NotFound(f"no model {model!r} is served", reason="MODEL_NOT_FOUND", field="model")
        return found

    def _least(
        self,
        entries: Iterable[tuple[Replica, ModelInfo]],
        rank: Callable[[Replica, ModelInfo], tuple[bool, ...]],
    ) -> Replica | None:
        """The first by rank, then load, then the one not picked for longest."""
        best = min(
            entries,
            key=lambda e: (rank(*e), e[0].num_running, self._last_pick.get(e[0].address, 0)),
            default=None,
        )
        if best is None:
            return None
        self._order += 1
        self._last_pick[best[0].address] = self._order
        return best[0]

    def _wake(self) -> None:
        self._misfits.look(self._drafters.serving(), self._verifiers.serving())
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(
        self, look: Callable[[], _T | None], timeout_s: float, unreached_s: float | None = None
    ) -> _T | None:
        """What `look` finds, looking again at every change; None after `timeout_s`.

        `unreached_s`: as `wait_ready` has it.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (found := look()) is None:
            limit_s = timeout_s
            if unreached_s is not None and self._verifiers.is_unreached():
                limit_s = min(timeout_s, unreached_s)
            left_s = began + limit_s - loop.time()
            if left_s <= 0:
                return None
            with suppress(TimeoutError):
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
        return found
