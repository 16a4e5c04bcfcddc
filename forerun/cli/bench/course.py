"""The order of a run: after a warm-up all contestants answer the same cell, one after the other, then the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.cli.bench.contestant import Contestant
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.sample import Sample
from forerun.cli.prompts import Prompt

WARM_UP = Prompt("warm-up", "", "Count from one to twenty in words.")
WARM_UP_TOKENS = 12
WARM_UP_NUMBER = 1_000_000  # warm-up texts are nobody else's


@dataclass(frozen=True, slots=True)
class Cell:
    """What every contestant does once: these jobs, so many at a time. Ratios of one `group` go together."""

    group: str
    jobs: tuple[Job, ...]
    sessions: int = 1


@dataclass(frozen=True, slots=True)
class Observation:
    """One contestant in one cell. `cell_number` counts the cells of the run."""

    cell_number: int
    cell: Cell
    set_up: str
    sample: Sample


async def run_course(
    cells: Sequence[Cell],
    contestants: Sequence[Contestant],
    console: Console,
    *,
    before_cell: Callable[[Cell], None] | None = None,
    first_number: int = 0,
) -> list[Observation]:
    """Return what everyone did in every cell. Who goes first changes from cell to cell: A B, B A, A B.

    Before each cell `before_cell` is called; before the first one of a group everyone warms up, with as many
    sessions.
    Contestants that cannot have as many sessions are left out of a cell.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    seen: list[Observation] = []
    warm: set[str] = set()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("warm-up", total=len(cells) * len(contestants))
        for number, cell in enumerate(cells, first_number):
            able = [one for one in contestants if (one.most_sessions or cell.sessions) >= cell.sessions]
            if before_cell:
                before_cell(cell)
            if cell.group not in warm:
                warm.add(cell.group)
                for one in able:
                    progress.update(bar, description=f"{cell.group}: {one.name} warms up".removeprefix(": "))
                    await one.run(warm_up_jobs(cell, number), cell.sessions)
            shift = number % len(able)
            for one in able[shift:] + able[:shift]:
                progress.update(bar, description=f"{cell.group}: {one.name}".removeprefix(": "))
                seen.append(Observation(number, cell, one.name, await one.run(cell.jobs, cell.sessions)))
                progress.advance(bar)
            progress.advance(bar, len(contestants) - len(able))
    return seen


def warm_up_jobs(cell: Cell, number: int) -> list[Job]:
    """Return short jobs, one a session, drawn as the cell's are."""
    one = cell.jobs[0]
    first = WARM_UP_NUMBER + number * cell.sessions
    return [
        Job(WARM_UP, WARM_UP_TOKENS, first + index, one.temperature, one.seed)
        for index in range(cell.sessions)
    ]
