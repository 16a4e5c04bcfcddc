"""`bench load`: many sessions at a time, a new one beginning as one ends."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from rich.console import Console

from forerun.cli.bench.contestant import Contestant
from forerun.cli.bench.course import Cell, run_course
from forerun.cli.bench.field import field
from forerun.cli.bench.jobs import endless
from forerun.cli.bench.report import Measured
from forerun.cli.bench.scout import natural_lengths
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import of_one_machine

# So few sessions would be over before a rate is one.
LEAST_ANSWERS = 6

PAIRS = (
    ("plain", "transformers"),
    ("lookup", "plain"),
    ("lookup", "transformers"),
    ("plain", "engine"),
    ("plain-beside", "plain"),
    ("colocated", "plain"),
    ("lookup", "colocated"),
    ("model", "plain"),
    ("model", "model-beside"),
    ("remote", "plain"),
    ("remote", "synchronous"),
)


async def run_load(
    settings: BenchSettings, sessions: Sequence[int], waves: int, console: Console
) -> Measured:
    """Return what everyone did with each number of sessions. Raises ForerunError."""
    async with field(settings, console) as ground:
        lengths = await natural_lengths(ground, settings.prompts)
        set_ups = [one for one in of_one_machine(settings.drafter_model) if settings.wants(one.name)]
        served = await ground.serve(set_ups)
        contestants: list[Contestant] = [*served, *await ground.baselines()]
        jobs = endless(settings.prompts, lengths, 1)
        cells = [
            Cell(group_of(number), tuple(islice(jobs, max(LEAST_ANSWERS, waves * number))), number)
            for _ in range(settings.repeat)
            for number in sessions
        ]
        with ground.watched():
            seen = await run_course(cells, contestants, console)
        return ground.measured("load", served, seen, PAIRS)


def group_of(sessions: int) -> str:
    """Return the group's name of so many sessions."""
    return "1 session" if sessions == 1 else f"{sessions} sessions"
