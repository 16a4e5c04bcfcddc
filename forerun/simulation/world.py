"""A verifier and its drafters in virtual time: what drafting gains over plain decoding.

Sessions, draft trees, verification, pacing and the drafters' sessions are the services' own code; passes, steps
and the wire only take time. Nothing sleeps, nothing computes logits; the same setting gives the same result.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from forerun.core.acceptance import Candidate, verify
from forerun.core.pacing import Pacing
from forerun.core.pass_cost import KNOTS
from forerun.core.types import DraftMessage, Mode, Row, Sampler, Sampling, Verdict
from forerun.simulation.drafting import Clock, Drafter, Pupil
from forerun.simulation.setting import MAX_ROWS, Setting
from verifier_service.session import DecodeOrder, Session

# Of many sessions so many are played; each stands for its share of the rest, in rows, tokens and drafters' load.
MAX_PLAYED = 8
_NO_LOGITS = np.zeros((MAX_ROWS + 1, 1), np.float32)
_FAR = 1 << 30  # no session ends


@dataclass(frozen=True, slots=True)
class Result:
    """Over the measured passes; `gain_at_first`: over those before them, in which everything is learned."""

    gain: float  # tokens per time, as a multiple of plain decoding
    gain_at_first: float
    tokens_per_pass: float
    rows_per_session: float
    pass_ms: float
    wait_ms: float  # before a pass, on average
    acceptance_rate: float  # accepted / tested
    draft_efficiency: float  # accepted / drafted
    drafter_busy: float  # share of the time

    def as_dict(self) -> dict[str, float]:
        """Return the fields, rounded for JSON."""
        return {name: round(value, 4) for name, value in asdict(self).items()}


class _Reciter:
    """Settles the text that is its own positions."""

    sampler: Sampler | None = None

    def decide(self, row: Row, position: int, candidates: Sequence[Candidate]) -> tuple[int, bool]:  # noqa: ARG002
        return position, any(candidate.token_id == position for candidate in candidates)


@dataclass(slots=True)
class _Sums:
    ns: int = 0
    wait_ns: int = 0
    busy_ns: int = 0
    passes: int = 0
    rows: int = 0
    tokens: int = 0
    tested: int = 0
    accepted: int = 0
    drafted: int = 0


class World:
    """One verifier under way; `make_pass` is one turn of `verifier_service.scheduler.Scheduler.run`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.clock = Clock()
        self.pacing = Pacing()
        self.pacing.cost.begin({rows: 1e3 * setting.curve.ms(rows) for rows in KNOTS})
        self.sums = _Sums()
        played = min(setting.sessions, MAX_PLAYED)
        self._played = [index % played for index in range(setting.sessions)]  # who plays each session
        self._copies = [self._played.count(index) for index in range(played)]
        self._rng = random.Random(setting.seed)
        self._sessions = [self._decode(index) for index in range(played)]
        self._drafters = [Drafter(self.clock, setting) for _ in range(min(setting.drafters, played))]
        self._pupils = [self._attach(index) for index in range(played)]
        for drafter in self._drafters:
            drafter.stir()

    def make_pass(self) -> None:
        """Wait where it pays, compose, pass, settle, tell the drafters."""
        started_ns = self.clock.now_ns
        self._await_drafts()
        self.sums.wait_ns += self.clock.now_ns - started_ns
        outlooks = [session.at_hand() for session in self._sessions]
        lengths = self.pacing.allot([outlooks[index] for index in self._played], 0, MAX_ROWS)
        plans = []
        for index, session in enumerate(self._sessions):
            twin = self._rng.randrange(self._copies[index])  # equal sessions may get unequal lengths
            plans.append(session.plan(lengths[index + twin * len(self._sessions)]))
        num_rows = self.setting.sessions + sum(lengths)
        took_ms = self.setting.curve.ms(num_rows)
        self.clock.run_until(self.clock.now_ns + round(1e6 * took_ms))
        self.pacing.cost.observe(num_rows, 1e3 * took_ms)
        for index, (plan, stream) in enumerate(plans):
            session = self._sessions[index]
            outcome = verify(session.decider, _NO_LOGITS[: len(plan) + 1], session.tree, plan, stream)
            session.credit(session.streams[1], outcome)
            self._settle(index, outcome.token_ids, *session.streams[1].take_counts())
        self.sums.passes += 1
        self.sums.rows += num_rows
        self.sums.ns += self.clock.now_ns - started_ns

    def totals(self) -> _Sums:
        """Return the sums so far, the drafters' own included."""
        sums = self.sums
        sums.busy_ns = sum(drafter.busy_ns for drafter in self._drafters) // len(self._drafters)
        sums.drafted = sum(
            pupil.session.counts.num_drafted * copies
            for pupil, copies in zip(self._pupils, self._copies, strict=True)
        )
        return _Sums(**asdict(sums))

    def _await_drafts(self) -> None:
        outlooks = [session.outlook() for session in self._sessions]
        wait_us = self.pacing.wait_us([outlooks[index] for index in self._played])
        if wait_us > 0:
            self.clock.run_until(
                self.clock.now_ns + int(1e3 * wait_us),
                lambda: not any(session.owed() for session in self._sessions),
            )
            for session in self._sessions:
                if session.owed():
                    session.streams[1].unanswered()

    def _settle(self, index: int, token_ids: tuple[int, ...], tested: int, accepted: int) -> None:
        session, copies = self._sessions[index], self._copies[index]
        stream, tree, base = session.streams[1], session.tree, session.base
        tree.settle(token_ids)
        self.sums.tokens += copies * len(token_ids)
        self.sums.tested += copies * tested
        self.sums.accepted += copies * accepted
        stream.window = self.pacing.window(
            stream.survival, stream.num_passes, session.window, self.setting.sessions
        )
        stream.told(base + len(token_ids), self.clock.now_ns)
        tree.set_window(1, stream.window)
        verdict = Verdict(
            base=base,
            token_ids=token_ids,
            num_drafted=tested,
            num_accepted=accepted,
            head_node=tree.head_node(1),
            seen_id=tree.seen_id(1),
            held=tree.held(1),
            next_length=self.pacing.burst_length(stream.survival),
            window=stream.window,
        )
        drafter, pupil = self._drafters[index % len(self._drafters)], self._pupils[index]
        self.clock.after(self._half_trip_ns, lambda: drafter.hear(pupil, verdict))

    def _receive(self, session: Session, message: DraftMessage) -> None:
        session.tree.graft(1, message.base, message.parent, message.first_id, message.token_ids)
        session.streams[1].heard(message.base, len(message.token_ids), self.clock.now_ns)

    def _decode(self, index: int) -> Session:
        order = DecodeOrder(str(index), 1, (0,), 1, Sampling(), Mode.GREEDY, b"", _FAR, frozenset())
        session = Session(order, self.setting.window)
        session.decider = _Reciter()
        survival = self.pacing.survival("simulated")
        stream = session.attach("drafter", "simulated", survival, laws=False)
        stream.window, stream.told_ns = self.setting.window, 0
        return session

    def _attach(self, index: int) -> Pupil:
        session = self._sessions[index]
        stream = session.streams[1]
        snapshot = session.snapshot(stream, self.pacing.burst_length(stream.survival), session.window)
        stream._told.clear()  # noqa: SLF001
        stream.told(1, 0)
        # Fewer drafters may be played than there are; each then carries its share of a real one's load.
        weight = self._copies[index] * len(self._drafters) / self.setting.drafters
        pupil = Pupil(
            snapshot,
            self.setting,
            weight,
            lambda message: self.clock.after(self._half_trip_ns, lambda: self._receive(session, message)),
            seed=index,
        )
        self._drafters[index % len(self._drafters)].pupils.append(pupil)
        return pupil

    @property
    def _half_trip_ns(self) -> int:
        return round(5e5 * self.setting.round_trip_ms)


def simulate(setting: Setting, turns: int = 1000, warm_up: int = 240) -> Result:
    """Return what drafting does in `turns` turns of the played sessions, after `warm_up` turns that learn.

    A turn is one session's part in one pass. `setting.sessions` must be within 1 and MAX_ROWS.
    """
    world = World(setting)
    played = min(setting.sessions, MAX_PLAYED)
    for _ in range(-(-warm_up // played)):
        world.make_pass()
    first = world.totals()
    for _ in range(-(-turns // played)):
        world.make_pass()
    last = world.totals()
    made = _Sums(**{name: value - getattr(first, name) for name, value in asdict(last).items()})
    plain_per_ns = setting.sessions / (1e6 * setting.plain_ms)
    return Result(
        gain=made.tokens / made.ns / plain_per_ns,
        gain_at_first=first.tokens / first.ns / plain_per_ns,
        tokens_per_pass=made.tokens / made.passes / setting.sessions,
        rows_per_session=made.rows / made.passes / setting.sessions,
        pass_ms=(made.ns - made.wait_ns) / made.passes / 1e6,
        wait_ms=made.wait_ns / made.passes / 1e6,
        acceptance_rate=made.accepted / max(made.tested, 1),
        draft_efficiency=made.accepted / max(made.drafted, 1),
        drafter_busy=min(made.busy_ns / made.ns, 1.0),
    )
