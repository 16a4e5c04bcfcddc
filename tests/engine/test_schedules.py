"""Any schedule of sessions gives each row the bits of a fresh prefill: shared prefixes, chunks, plans of 1 to 16 rows,
rollbacks, set-backs and takeovers by a second engine, in pools that are too small for all."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from forerun.engine.interface import PoolFullError, Segment
from forerun.engine.paged_engine import PagedEngine
from tests.engine.tiny_models import tiny_engine

VOCAB = 64
CONTEXT = 512
STEM = [int(x) for x in np.random.default_rng(11).integers(0, VOCAB, CONTEXT)]
FORKS = (
    1,
    37,
    48,
    130,
    CONTEXT,
)  # where texts leave the stem: early, inside a block, at its edge, late, never
NAMES = "abcdef"


def text_of(fork: int, name: str) -> list[int]:
    """The stem up to `fork`, then tokens of the session's own."""
    return STEM[:fork] + [(token + ord(name)) % VOCAB for token in STEM[fork:]]


class Oracle:
    """Logits of every row of a text, from one prefill of it alone in an empty pool."""

    def __init__(self, engine: PagedEngine) -> None:
        self._engine = engine
        self._known: dict[tuple[int, ...], np.ndarray] = {}

    def rows(self, text: list[int], start: int) -> np.ndarray:
        if tuple(text) not in self._known:
            self._engine.open("oracle", text[:1])
            self._known[tuple(text)] = self._engine.forward([Segment("oracle", 0, text, len(text))])[0]
            self._engine.close("oracle")
        return self._known[tuple(text)][start:]


class Schedule:
    """Sessions on two engines of one model, and what a random scheduler does with them.

    A session's whole text is known beforehand, so one that holds any part of it can go on as it must.
    """

    def __init__(self, engines: tuple[PagedEngine, PagedEngine], oracle: Oracle, seed: int) -> None:
        self.engines = engines
        self.oracle = oracle
        self.rng = random.Random(seed)
        self.texts: dict[str, list[int]] = {}
        self.held: dict[str, int] = {}  # leading positions with KV that are right
        self.place: dict[str, int] = {}
        self.done: Counter[str] = Counter()

    def step(self) -> None:
        name = self.rng.choice(NAMES)
        if name not in self.texts:
            self.texts[name] = text_of(self.rng.choice(FORKS), name)
            self.enter(name, self.rng.randrange(2), told=400)
        elif self.rng.random() < 0.05:
            self.engines[self.place[name]].close(name)
            del self.texts[name], self.held[name], self.place[name]
        elif self.rng.random() < 0.05:
            self.done["takeovers"] += 1
            self.engines[self.place[name]].close(name)
            self.enter(name, 1 - self.place[name], told=self.held[name])
        else:
            self.make_pass(self.place[name])

    def enter(self, name: str, place: int, told: int) -> None:
        self.place[name] = place
        self.held[name] = self.engines[place].open(name, self.texts[name][: max(told, 1)])
        self.done["shared"] += self.held[name] > 0

    def make_pass(self, place: int) -> None:
        names = [n for n in self.texts if self.place[n] == place and self.held[n] < CONTEXT]
        chosen = self.rng.sample(names, self.rng.randint(0, len(names)))
        turns = [self.plan(n) if self.rng.random() < 0.6 else self.chunk(n) for n in chosen]
        segments = [segment for segment, _ in turns]
        try:
            found = self.engines[place].forward(segments)
        except PoolFullError as full:
            self.done["set_backs"] += 1
            self.engines[place].close(full.session_id)
            self.enter(full.session_id, place, told=self.held[full.session_id])
            return
        for (segment, right), logits in zip(turns, found, strict=True):
            self.held[segment.session_id] = segment.start + right
            fed = self.texts[segment.session_id][: segment.start] + list(segment.token_ids)
            expected = self.oracle.rows(fed, len(fed) - segment.num_logits)
            assert logits.tobytes() == expected.tobytes(), (segment, self.done)
            self.done["rows"] += segment.num_logits
        self.done["shared passes"] += len(segments) > 1

    def plan(self, name: str) -> tuple[Segment, int]:
        """A settled token and up to 15 drafted ones, wrong from some place on; now and then after a rollback."""
        start = self.held[name]
        if self.rng.random() < 0.2:
            start = max(0, start - self.rng.randint(1, 20))
        rows = self.texts[name][start : start + self.rng.randint(1, 16)]
        right = self.rng.randint(1, len(rows))
        wrong = [(token + 1) % VOCAB for token in rows[right:]]
        self.done[f"plan of {len(rows)}"] += 1
        return Segment(name, start, rows[:right] + wrong, len(rows)), right

    def chunk(self, name: str) -> tuple[Segment, int]:
        """The next piece of a prompt, its last row's logits wanted or none."""
        rows = self.texts[name][self.held[name] :][: self.rng.randint(1, 120)]
        return Segment(name, self.held[name], rows, self.rng.randint(0, 1)), len(rows)


def run_schedules(folder: Path, dtype: str, *, seeds: int, steps: int) -> Counter[str]:
    """What happened in all of them, none having changed a bit."""
    engines = tuple(tiny_engine(folder, dtype=dtype, positions=800) for _ in range(2))
    oracle = Oracle(tiny_engine(folder, dtype=dtype))
    done: Counter[str] = Counter()
    for seed in range(seeds):
        schedule = Schedule(engines, oracle, seed)
        for _ in range(steps):
            schedule.step()
        for name, place in schedule.place.items():
            engines[place].close(name)
        assert [engine.pool.num_held for engine in engines] == [0, 0]
        done += schedule.done
    return done


def test_no_schedule_changes_a_bit(tiny: Path, dtype: str) -> None:
    done = run_schedules(tiny, dtype, seeds=12, steps=150)
    for kind in ("takeovers", "set_backs", "shared", "shared passes"):
        assert done[kind] > 30, kind
    assert all(done[f"plan of {rows}"] > 10 for rows in range(1, 17))


@pytest.mark.usefixtures("no_kernels")
def test_no_schedule_changes_a_bit_through_transformers_modules(tiny: Path, dtype: str) -> None:
    done = run_schedules(tiny, dtype, seeds=2, steps=45)
    assert min(done[kind] for kind in ("takeovers", "set_backs", "shared", "shared passes")) > 0
