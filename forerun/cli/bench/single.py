"""`bench single`: one session at a time through every set-up."""

from __future__ import annotations

from rich.console import Console

from forerun.cli.bench.contestant import Contestant
from forerun.cli.bench.course import Cell, run_course
from forerun.cli.bench.field import field
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.report import Measured
from forerun.cli.bench.scout import natural_lengths
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import of_one_machine

PAIRS = (
    ("plain", "transformers"),
    ("lookup", "plain"),
    ("lookup", "transformers"),
    ("lookup", "transformers-lookup"),
    ("plain", "llama.cpp"),
    ("lookup", "llama.cpp"),
    ("plain", "engine"),
    ("plain-beside", "plain"),
    ("colocated", "plain"),
    ("lookup", "colocated"),
    ("model", "plain"),
    ("model", "model-beside"),
    ("remote", "plain"),
    ("remote", "synchronous"),
)


async def run_single(settings: BenchSettings, console: Console) -> Measured:
    """Return what everyone did with every prompt. Raises ForerunError."""
    async with field(settings, console) as ground:
        lengths = await natural_lengths(ground, settings.prompts)
        set_ups = [one for one in of_one_machine(settings.drafter_model) if settings.wants(one.name)]
        served = await ground.serve(set_ups)
        contestants: list[Contestant] = [*served, *await ground.baselines()]
        cells = [
            Cell("", (Job(prompt, lengths[prompt], number),))
            for number in range(settings.repeat)
            for prompt in settings.prompts
        ]
        with ground.watched():
            seen = await run_course(cells, contestants, console)
        return ground.measured("single", served, seen, PAIRS)
