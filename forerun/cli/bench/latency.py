"""`bench latency`: a network of growing delay between drafter and verifier."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from forerun.cli.bench.course import Cell, run_course
from forerun.cli.bench.field import field
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.report import Measured
from forerun.cli.bench.scout import natural_lengths
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import over_a_network

MOST_ROUND_TRIP_MS = 10_000

PAIRS = (
    ("remote", "synchronous"),
    ("remote", "plain"),
    ("remote", "colocated"),
    ("synchronous", "plain"),
    ("colocated", "plain"),
)


async def run_latency(settings: BenchSettings, round_trips_ms: Sequence[float], console: Console) -> Measured:
    """Return what everyone did at each round trip. Raises ForerunError.

    Plain and the co-located drafter know no network; they are measured beside the others at every delay.
    """
    async with field(settings, console) as ground:
        lengths = await natural_lengths(ground, settings.prompts)
        set_ups = [one for one in over_a_network(settings.drafter_model) if settings.wants(one.name)]
        served = await ground.serve(set_ups)
        groups = {f"{ms:g} ms": ms for ms in round_trips_ms}
        cells = [
            Cell(group, (Job(prompt, lengths[prompt], repetition * len(groups) + index),))
            for repetition in range(settings.repeat)
            for prompt in settings.prompts
            for index, group in enumerate(groups)
        ]

        def move(cell: Cell) -> None:
            for one in served:
                if one.relay:
                    one.relay.one_way_s = groups[cell.group] / 2000

        with ground.watched():
            seen = await run_course(cells, served, console, before_cell=move)
        return ground.measured("latency", served, seen, PAIRS)
