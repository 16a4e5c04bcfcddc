"""The loop every token goes through: one pass after another over all running sessions.

    open what is new → look up → wait for drafts where it pays → compose → forward (engine thread) → verify → settle

and, while the next pass computes, tell: listeners, drafters, metrics. Read `Scheduler.run`. Nothing of torch runs here;
nothing awaits in the engine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from forerun.core.acceptance import Outcome, verify
from forerun.core.pacing import Pacing
from forerun.core.prompt_cost import PromptCost
from forerun.core.types import FinishReason, PassRecord, Said, Settled, Verdict
from forerun.engine.executor import EngineThread
from forerun.engine.interface import Engine, PoolFullError
from forerun.errors import InternalFault
from verifier_service import metrics
from verifier_service.own_lookup import SOURCE
from verifier_service.session import Session
from verifier_service.sessions import Sessions
from verifier_service.tracing import trace_pass
from verifier_service.turn import Turn

# Rows of one pass at most: the engine proves row invariance up to here.
MAX_ROWS = 512
# Prompt rows of one pass at most when nobody decodes, and when somebody does: a long prompt must not hold tokens up.
PREFILL_ROWS = 256
PREFILL_ROWS_BESIDE_DECODING = 64
BEGUN_S = 0.001  # the event loop holds still for so long at most, for a pass to begin

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pass:
    """Facts of the pass just made, the same for every session in it."""

    started_ns: int
    took_us: int
    num_rows: int
    num_sessions: int


@dataclass(frozen=True, slots=True)
class Decision:
    """What a pass decided for one session."""

    session: Session
    outcome: Outcome
    settled: Settled
    num_sessions: int


class Scheduler:
    """Makes passes for as long as there are sessions; sleeps when there are none."""

    def __init__(
        self,
        engine: Engine,
        thread: EngineThread,
        sessions: Sessions,
        pacing: Pacing,
        *,
        lookup: bool = False,
    ) -> None:
        self._engine = engine
        self._thread = thread
        self._sessions = sessions
        self._pacing = pacing
        self._prompt_cost = PromptCost()
        self._lookup = lookup  # draft by look-up for every session that wants drafts
        self._untold: list[Decision] = []  # of the last pass; told while the next one runs

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._sessions.changed.wait()
            await self._open_and_close()
            if not self._sessions.running:
                if not self._sessions.ended:  # nothing to close was left while others were opened and closed
                    self._sessions.changed.clear()
                continue
            self._look_up()
            await self._await_drafts()
            turns = self._compose()
            if not turns:
                self._tell()
                await asyncio.sleep(0)
                continue
            try:
                started = time.monotonic_ns()
                segments = [turn.segment() for turn in turns]
                passing = self._thread.begin(BEGUN_S, self._engine.forward, segments)
                # While it computes, without the interpreter: listeners, drafters and whoever asks for something.
                self._tell()
                said = await passing
            except PoolFullError as full:
                self._set_back(full)
            except Exception as fault:
                log.exception("pass failed", sessions=[turn.session.id for turn in turns])
                self._fail([turn.session for turn in turns], fault)
            else:
                self._settle_all(turns, said, started)

    async def _open_and_close(self) -> None:
        while ended := self._sessions.ended:
            await self._thread.run(self._engine.close, ended[0].key)
            ended.popleft()
        for session in list(self._sessions.running.values()):
            if not session.opened and not session.finished:
                held = await self._thread.run(self._engine.open, session.key, session.tree.token_ids)
                session.opened, session.computed, session.ready_ns = True, held, time.monotonic_ns()
                if self._lookup and not session.order.no_draft and session.lookup is None:
                    session.look_up(self._pacing.survival(SOURCE))
                if session.finished:  # cancelled while it was opened
                    self._sessions.ended.append(session)

    def _look_up(self) -> None:
        """Everybody who looks up has drafted what its own text says comes next."""
        for session in self._decoding():
            if session.lookup:
                session.lookup.draft(self._pacing.burst_length(session.lookup.survival))

    async def _await_drafts(self) -> None:
        """Give drafters that owe an answer the time that waiting for them pays, for all sessions at once."""
        if not any(session.owed() for session in self._decoding()):
            return
        started = time.monotonic_ns()
        deadline = started + 1000 * int(self._pacing.wait_us([s.outlook() for s in self._decoding()]))
        if deadline > started:
            self._tell()  # whoever is waited for must know what about
        while (left := deadline - time.monotonic_ns()) > 0 and any(s.owed() for s in self._decoding()):
            self._sessions.heard.clear()
            try:  # not wait_for: it may lose a cancellation that comes as the event is set
                async with asyncio.timeout(left / 1e9):
                    await self._sessions.heard.wait()
            except TimeoutError:
                break
        waited = time.monotonic_ns() - started
        for session in self._decoding():
            session.wait_ns += waited
            if deadline > started and session.owed() and (stream := session.proven_stream()):
                stream.unanswered()

    def _compose(self) -> list[Turn]:
        """Choose the rows of the next pass: every decoding session, then prompts in equal shares."""
        decoding = self._decoding()[:MAX_ROWS]
        prompts = [s for s in self._opened() if s.num_pending > 1]
        prompts.sort(key=lambda s: s.num_pending)
        budget = PREFILL_ROWS
        if decoding:
            plain_us = self._pacing.cost.us(len(decoding))
            depths = [s.computed for s in prompts]
            budget = self._prompt_cost.rows_beside(plain_us, depths, PREFILL_ROWS_BESIDE_DECODING)
        budget = min(budget, MAX_ROWS - len(decoding), sum(s.num_pending for s in prompts))
        lengths = self._pacing.allot([s.at_hand() for s in decoding], budget, MAX_ROWS)
        turns = [Turn(s, 1, *s.plan(length), draws=True) for s, length in zip(decoding, lengths, strict=True)]
        for index, session in enumerate(prompts):
            share = min(session.num_pending, budget, max(budget // (len(prompts) - index), 1))
            if share > 0:
                turns.append(Turn(session, share, (), None, draws=share == session.num_pending))
                budget -= share
        return turns

    def _decoding(self) -> list[Session]:
        return [s for s in self._opened() if s.num_pending == 1]

    def _opened(self) -> list[Session]:
        """Running sessions the engine knows; one admitted a moment ago is opened before the next pass."""
        return [s for s in self._sessions.running.values() if s.opened]

    def _settle_all(self, turns: Sequence[Turn], said: Sequence[Said], started_ns: int) -> None:
        made = Pass(
            started_ns=started_ns,
            took_us=(time.monotonic_ns() - started_ns) // 1000,
            num_rows=sum(turn.num_fed + len(turn.plan) for turn in turns),
            num_sessions=len(turns),
        )
        self._learn_cost(turns, made)
        metrics.observe_pass(made.num_rows, made.num_sessions, made.took_us)
        for turn, rows in zip(turns, said, strict=True):
            session = turn.session
            if session.finished:  # cancelled while the pass ran
                continue
            if not turn.draws:
                session.computed += turn.num_fed
                session.num_prefilled += turn.num_fed
                continue
            try:
                self._settle(turn, rows, made)
            except InternalFault as broken:  # logits that are not numbers
                self._fail([session], broken)
            except Exception as fault:
                log.exception("settling failed", session=session.id)
                self._fail([session], fault)

    def _learn_cost(self, turns: Sequence[Turn], made: Pass) -> None:
        """What rows cost is learned from passes without prompts, what prompts add from the others."""
        cost = self._pacing.cost
        prompts = [(turn.num_fed, turn.session.computed) for turn in turns if turn.num_fed > 1]
        if not prompts:
            cost.observe(made.num_rows, made.took_us)
        elif cost.known:
            plain_us = cost.us(made.num_rows - sum(count for count, _ in prompts))
            self._prompt_cost.observe(prompts, made.took_us - plain_us, plain_us)

    def _settle(self, turn: Turn, rows: Said, made: Pass) -> None:
        """Decide the session's next tokens and re-root its tree: all that the next pass depends on."""
        session, base = turn.session, turn.session.base
        outcome = verify(session.decider, rows, session.tree, turn.plan, turn.stream)
        token_ids, finish = session.cut(outcome.token_ids)
        # A sibling of a planned node may be accepted in its place; it had no row, so it has no KV.
        session.computed += turn.num_fed + sum(
            a is b for a, b in zip(turn.plan, outcome.accepted, strict=False)
        )
        torn = session.tree.settle(token_ids)
        record = PassRecord(
            plan_token_ids=tuple(node.token_id for node in turn.plan),
            target_token_ids=outcome.target_token_ids[: len(token_ids)],
            num_tested=min(outcome.num_tested, len(token_ids)),
            num_accepted=min(outcome.num_accepted, len(token_ids)),
            num_salvaged=min(outcome.num_salvaged, len(token_ids)),
            num_torn=torn,
            num_held=session.tree.num_nodes,
            source=session.source_of(outcome),
            num_rows=made.num_rows,
            num_sessions=made.num_sessions,
            pass_us=made.took_us,
            wait_us=session.wait_ns // 1000,
            queue_us=max(made.started_ns - session.ready_ns - session.wait_ns, 0) // 1000,
            num_prefilled=session.num_prefilled + turn.num_fed - 1,
        )
        session.ready_ns, session.wait_ns, session.num_prefilled = time.monotonic_ns(), 0, 0
        settled = Settled(base, token_ids, outcome.origins[: len(token_ids)], finish, record)
        self._untold.append(Decision(session, outcome, settled, made.num_sessions))
        if finish is not FinishReason.NONE:
            self._tell()
            self._sessions.end(session, finish)

    def _tell(self) -> None:
        """Everything settled has been told to its drafters and its listener, learned from, counted and traced."""
        untold, self._untold = self._untold, []
        for decision in untold:
            session, settled = decision.session, decision.settled
            self._tell_drafters(session, decision.outcome, settled, decision.num_sessions)
            session.tell(settled)
            trace_pass(session.trace, settled)
            if settled.record:
                metrics.observe_outcome(settled.record, len(settled.token_ids))

    def _tell_drafters(self, session: Session, outcome: Outcome, settled: Settled, num_sessions: int) -> None:
        """Each source is credited with what was its own; drafters have verdicts, from the tree as it is now."""
        if lookup := session.lookup:
            session.credit(lookup, outcome)
            lookup.window = self._pacing.window(
                lookup.survival, lookup.num_passes, session.window, num_sessions
            )
            session.tree.set_promise(lookup.number, lookup.survival.at(0))
        now = time.monotonic_ns()
        for stream in list(session.streams.values()):
            if stream.unread(now):
                log.warning(
                    "drafter detached: verdicts left unread", session=session.id, drafter=stream.drafter
                )
                session.detach(stream)
                continue
            session.credit(stream, outcome)
            tree, number = session.tree, stream.number
            window = self._pacing.window(stream.survival, stream.num_passes, session.window, num_sessions)
            tree.set_window(number, window)
            tree.set_promise(number, stream.survival.at(0))
            if not window and not stream.window and settled.finish_reason is FinishReason.NONE:
                continue  # one that was told to stop is told no more until it may go on
            tested, accepted = stream.take_counts()
            stream.push(
                Verdict(
                    base=stream.told_base,
                    token_ids=tuple(tree.token_ids[stream.told_base :]),
                    num_drafted=tested,
                    num_accepted=accepted,
                    head_node=tree.head_node(number),
                    seen_id=tree.seen_id(number),
                    held=tree.held(number),
                    next_length=self._pacing.burst_length(stream.survival),
                    window=window,
                    finish_reason=settled.finish_reason,
                    pass_us=settled.record.pass_us if settled.record else 0,
                )
            )

    def _set_back(self, full: PoolFullError) -> None:
        """The KV pool is full: the youngest running session gives its KV up and queues until another one ends."""
        opened = self._opened()
        if len(opened) == 1:
            self._fail(opened, full)
            return
        log.info("session set back", session=opened[-1].id, running=len(opened))
        self._sessions.set_back(opened[-1])
        metrics.SET_BACKS.inc()

    def _fail(self, sessions: Sequence[Session], fault: Exception) -> None:
        self._tell()  # what was settled before comes before the error
        for session in sessions:
            error = (
                fault
                if isinstance(fault, InternalFault)
                else InternalFault("the forward pass failed", reason="PASS_FAILED")
            )
            log.error("session failed", session=session.id, reason=error.reason, fault=str(fault))
            session.fail(error)
            self._sessions.end(session, FinishReason.ERROR)
