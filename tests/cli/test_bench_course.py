"""A run is interleaved: A B, B A, A B; everyone warm, everyone with the same jobs."""

import io

from rich.console import Console

from forerun.cli.bench.course import WARM_UP, Cell, run_course
from forerun.cli.bench.jobs import Job
from forerun.cli.bench.sample import Answered, Sample
from forerun.cli.prompts import Prompt

CONSOLE = Console(file=io.StringIO())


class Noted:
    """A contestant that notes what it is asked."""

    def __init__(self, name, log, most_sessions=None):
        self.name, self.log, self.most_sessions = name, log, most_sessions

    async def run(self, jobs, sessions):
        kind = "warm-up" if jobs[0].prompt is WARM_UP else jobs[0].prompt.prompt_id
        self.log.append((self.name, kind, len(jobs), sessions))
        return Sample(tuple(Answered(job, (1,), 1.0, 0.5) for job in jobs), len(jobs), 1.0)


def cell(number: int, group: str = "", sessions: int = 1) -> Cell:
    prompt = Prompt(str(number), "chat", "x")
    return Cell(group, tuple(Job(prompt, 4, index) for index in range(2 * sessions)), sessions)


async def test_contestants_take_turns_in_changing_order():
    log = []
    seen = await run_course([cell(0), cell(1), cell(2)], [Noted("A", log), Noted("B", log)], CONSOLE)
    asked = [(name, kind) for name, kind, _, _ in log if kind != "warm-up"]
    assert asked == [("A", "0"), ("B", "0"), ("B", "1"), ("A", "1"), ("A", "2"), ("B", "2")]
    assert [(one.set_up, one.cell.jobs[0].prompt.prompt_id) for one in seen] == asked
    assert [one.cell_number for one in seen] == [0, 0, 1, 1, 2, 2]


async def test_everyone_warms_up_before_each_group_with_as_many_sessions():
    log, told = [], []
    cells = [cell(0, "1 session"), cell(1, "8 sessions", 8), cell(2, "1 session")]
    await run_course(
        cells, [Noted("A", log), Noted("B", log)], CONSOLE, before_cell=lambda one: told.append(one.group)
    )
    assert [entry for entry in log if entry[1] == "warm-up"] == [
        ("A", "warm-up", 1, 1), ("B", "warm-up", 1, 1), ("A", "warm-up", 8, 8), ("B", "warm-up", 8, 8),
    ]  # fmt: skip
    assert told == ["1 session", "8 sessions", "1 session"]
    assert [entry[1] for entry in log[:2]] == ["warm-up", "warm-up"]


async def test_who_cannot_have_so_many_sessions_is_left_out():
    log = []
    cells = [cell(0, "1 session"), cell(1, "8 sessions", 8)]
    seen = await run_course(cells, [Noted("A", log), Noted("alone", log, most_sessions=1)], CONSOLE)
    assert [(one.set_up, one.cell.sessions) for one in seen] == [("A", 1), ("alone", 1), ("A", 8)]


async def test_cells_of_a_later_part_go_on_counting():
    seen = await run_course([cell(0)], [Noted("A", []), Noted("B", [])], CONSOLE, first_number=7)
    assert {one.cell_number for one in seen} == {7}
