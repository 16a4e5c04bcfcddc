"""Virtual time, and the drafters that live in it.

The drafters' sessions are the service's own (`drafter_service.session`); what is played is the model, the step
and the wire. A text is its positions: the right token at index i is i, a wrong one i + WRONG, so whatever follows
a wrong token is wrong as well.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from drafter_service.session import Counts, DraftSession
from drafter_service.sources.source import Ask, Drawn
from forerun.core.types import DraftMessage, Snapshot, Verdict
from forerun.simulation.setting import Setting

WRONG = 1 << 40

Action = Callable[[], None]


@dataclass(slots=True)
class Clock:
    """Nanoseconds that pass only when told to; what is due at the same time happens in the order it was set."""

    now_ns: int = 0
    _due: list[tuple[int, int, Action]] = field(default_factory=list)
    _number: int = 0

    def after(self, delay_ns: int, action: Action) -> None:
        """Let `action` happen `delay_ns` from now."""
        self._number += 1
        heapq.heappush(self._due, (self.now_ns + delay_ns, self._number, action))

    def run_until(self, end_ns: int, enough: Callable[[], bool] = lambda: False) -> None:
        """Let everything happen that is due by `end_ns`, and stop there, or earlier once there is `enough`."""
        while not enough():
            if not self._due or self._due[0][0] > end_ns:
                self.now_ns = max(self.now_ns, end_ns)
                return
            at_ns, _, action = heapq.heappop(self._due)
            self.now_ns = at_ns
            action()


class Pupil:
    """One session at its drafter. `weight`: how many like it the drafter carries."""

    def __init__(
        self,
        snapshot: Snapshot,
        setting: Setting,
        weight: float,
        send: Callable[[DraftMessage], None],
        *,
        seed: int,
    ) -> None:
        self.session = DraftSession("", snapshot, max_context=None, entropy=b"\0", counts=Counts())
        self.weight = weight
        self.send = send
        self._setting = setting
        self._rng = random.Random(f"{setting.seed} {seed}")
        self._finder = random.Random(f"{setting.seed} {seed} finds")
        self._luck: list[float] = []  # by position: the guess is right where this is below its acceptance
        self._found: dict[int, bool] = {}  # by position: whether look-up has an answer there

    def guess(self, ask: Ask, length: int) -> Drawn:
        """Continue the text; the same text always the same way."""
        start = len(ask.token_ids)
        if not self._found.setdefault(start, self._finder.random() < self._setting.finds):
            return Drawn(ends=True)
        while len(self._luck) < start + length:
            self._luck.append(self._rng.random())
        on_text = ask.token_ids[-1] == start - 1
        token_ids = []
        for index in range(start, start + length):
            on_text = on_text and self._luck[index] < self._setting.right(index - ask.num_settled)
            token_ids.append(index if on_text else index + WRONG)
        return Drawn(tuple(token_ids))


class Drafter:
    """A machine that makes one step after another over all its sessions with credits left (`drafter_service.loop`)."""

    def __init__(self, clock: Clock, setting: Setting) -> None:
        self.pupils: list[Pupil] = []
        self.busy_ns = 0
        self._clock = clock
        self._setting = setting
        self._busy = False

    def hear(self, pupil: Pupil, verdict: Verdict) -> None:
        """Take a verdict in and draw on."""
        pupil.session.apply(verdict)
        self.stir()

    def stir(self) -> None:
        """Begin a step if none is under way and somebody asks for tokens."""
        wishes = [] if self._busy else [(p, a) for p in self.pupils if (a := p.session.ask()) is not None]
        if not wishes:
            return
        load = sum(pupil.weight for pupil, _ in wishes) / self._setting.carries
        took_ns = round(1e6 * self._setting.step_ms * max(1.0, load))
        self._busy = True
        self.busy_ns += took_ns
        self._clock.after(took_ns, lambda: self._finish(wishes))

    def _finish(self, wishes: Sequence[tuple[Pupil, Ask]]) -> None:
        self._busy = False
        for pupil, ask in wishes:
            drawn = pupil.guess(ask, 1 if self._setting.step_ms else ask.length)
            message = pupil.session.take(ask, drawn)
            if message is not None:
                pupil.send(message)
        self.stir()
