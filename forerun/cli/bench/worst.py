"""`bench worst`: drafters that are useless, slow or stalled, sampling that cannot be guessed, and a crowd."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rich.console import Console

from forerun.cli.bench.contestant import Served
from forerun.cli.bench.course import Cell, Observation, run_course
from forerun.cli.bench.field import Field, field
from forerun.cli.bench.jobs import Job, answer_length, endless
from forerun.cli.bench.load import group_of
from forerun.cli.bench.report import Measured
from forerun.cli.bench.scout import natural_lengths, plain_answers, save_texts
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import PLAIN, SetUp
from forerun.cli.prompts import Prompt

LEAST_PAIRS = 5
TEMPERATURE = 1.5
SLOWNESS = 10  # passes of the target that a message of the slow drafter takes
# Texts of these numbers are nobody else's.
PROBE_NUMBER, HOT_NUMBER, CROWD_NUMBER = 100_000, 200_000, 300_000
WAVES = 2  # answers a session of the crowd gives

PAIRS = (("drafting", "plain"),)
SLOW = "10x too slow"
CASES = ("random drafts", SLOW, "stalled", "temperature 1.5", "crowd")


@dataclass(frozen=True, slots=True)
class Case:
    """One worst case: what drafts, and what is asked of it and of plain in turn."""

    set_up: SetUp
    cells: tuple[Cell, ...]


async def run_worst(settings: BenchSettings, cases: Sequence[str], crowd: int, console: Console) -> Measured:
    """Return every case's pairs of runs, with drafting and plain. Raises ForerunError.

    Each case has a verifier and a drafter of its own, so that nothing is known of the case before.
    """
    async with field(settings, console) as ground:
        lengths = await natural_lengths(ground, settings.prompts)
        said = await _replayed(ground, [case for case in cases if case in CASES[:3]])
        (plain,) = await ground.serve([PLAIN])
        pass_ms = 1000 * await _pass_s(plain, settings)
        seen: list[Observation] = []
        served: list[Served] = [plain]
        with ground.watched():
            for case in [*_faulty(ground, said, pass_ms), *_unguessable(settings, cases, lengths, crowd)]:
                (drafting,) = await ground.serve([case.set_up])
                seen += await run_course(case.cells, [drafting, plain], console, first_number=len(seen))
                served.append(drafting)
                await ground.retire(drafting)
        if SLOW in cases:
            ground.notes.append(f"the slow drafter takes {SLOWNESS * pass_ms:.0f} ms a message")
        return ground.measured("worst", served, seen, PAIRS, {"drafting": "with drafting"})


def pairs_of(prompts: Sequence[Prompt], repeat: int) -> int:
    """Return how many pairs a case has: every prompt `repeat` times, and never fewer than five."""
    return max(LEAST_PAIRS, len(prompts) * repeat)


async def _replayed(ground: Field, cases: Sequence[str]) -> dict[str, dict[Job, tuple[int, ...]]]:
    """Return, by case, the jobs whose answers its drafter knows beforehand, and these answers."""
    settings = ground.settings
    most = dict.fromkeys(settings.prompts, settings.max_tokens)
    jobs = endless(settings.prompts, most, 1)
    number = pairs_of(settings.prompts, settings.repeat)
    by_case = {case: list(islice(jobs, number)) for case in cases}
    said = await plain_answers(ground, [job for own in by_case.values() for job in own]) if cases else {}
    return {case: {job: said[job] for job in own} for case, own in by_case.items()}


def _faulty(ground: Field, said: dict[str, dict[Job, tuple[int, ...]]], pass_ms: float) -> Iterator[Case]:
    """Yield the cases of drafters that are wrong, or right and too late, or right once."""
    most = ground.settings.max_tokens
    for case, answers in said.items():
        texts = save_texts(ground, answers)
        source = {
            "random drafts": f"replay:{texts}?error=1",
            SLOW: f"slow:{SLOWNESS * pass_ms:.1f}:replay:{texts}",
            "stalled": f"stall:replay:{texts}",
        }[case]
        jobs = [replace(job, num_tokens=answer_length(len(ids), most)) for job, ids in answers.items()]
        yield Case(SetUp("drafting", case, source), tuple(Cell(case, (job,)) for job in jobs))


def _unguessable(
    settings: BenchSettings, cases: Sequence[str], lengths: dict[Prompt, int], crowd: int
) -> Iterator[Case]:
    """Yield the cases in which all that can draft does, the verifier's own look-up too."""
    number = pairs_of(settings.prompts, settings.repeat)
    if "temperature 1.5" in cases:
        jobs = islice(endless(settings.prompts, lengths, HOT_NUMBER), number)
        hot = (replace(job, temperature=TEMPERATURE, seed=seed) for seed, job in enumerate(jobs))
        set_up = SetUp("drafting", "temperature 1.5", "ngram", lookup=True)
        yield Case(set_up, tuple(Cell("temperature 1.5", (job,)) for job in hot))
    if "crowd" in cases:
        many = endless(settings.prompts, lengths, CROWD_NUMBER)
        crowds = [tuple(islice(many, WAVES * crowd)) for _ in range(LEAST_PAIRS * settings.repeat)]
        set_up = SetUp("drafting", group_of(crowd), "ngram", lookup=True)
        yield Case(set_up, tuple(Cell(group_of(crowd), each, crowd) for each in crowds))


async def _pass_s(plain: Served, settings: BenchSettings) -> float:
    """Return the seconds that plain decoding takes a token, by a few answers."""
    jobs = [Job(prompt, settings.max_tokens, PROBE_NUMBER) for prompt in settings.prompts[:3]]
    answers = [(await plain.run([job], 1)).answers[0] for job in jobs]
    return statistics.median((one.seconds - one.first_token_s) / (len(one.token_ids) - 1) for one in answers)
