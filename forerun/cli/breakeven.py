"""`forerun breakeven`: is a drafter worth it here, and what would help most? Asked of the simulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.box import SIMPLE
from rich.table import Table

from forerun.cli.flags import AsJson, number
from forerun.cli.foreground import answer_console
from forerun.simulation.setting import MAX_ROWS, PRESETS, Setting
from forerun.simulation.world import Result, simulate

TURNS = 400
SEEDS = 3  # simulated texts that every gain is the mean of
NOTABLE = 1.03  # what a change must multiply the gain by to be told: less may be the texts' own spread
WORTH_IT = 1.05  # a gain below this is not worth a machine
MOST_ACCEPTANCE, MOST_ROUND_TRIP_MS = 0.98, 500.0
BISECTIONS = 5
BISECTION_TURNS = 240


@dataclass(frozen=True, slots=True)
class Answer:
    """What is to be expected, what each change would give, and where drafting begins to pay.

    `least_acceptance`, `longest_round_trip_ms`: the others as given; None: nowhere within reach.
    """

    setting: Setting
    result: Result
    changes: dict[str, float]  # gain by change that helps by NOTABLE or more, best first
    least_acceptance: float | None
    longest_round_trip_ms: float | None


def breakeven(
    *,
    round_trip_ms: Annotated[float, number(0, 10_000, "Verifier to drafter and back.")],
    draft_step_ms: Annotated[float, number(0, 10_000, "Drafter's time for one more token; 0: look-up.")],
    acceptance: Annotated[float, number(0, 1, "How often a drafted token is right if those before it are.")],
    sessions: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Answers under way at a time.")] = 1,
    drafters: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="Machines that share them.")] = 1,
    preset: Annotated[
        str, typer.Option(help=f"Target whose pass by rows is taken: {', '.join(PRESETS)}.")
    ] = "70b-gpu",
    pass_ms: Annotated[float | None, number(0.01, 60_000, "Its smallest pass, if not the preset's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the simulated texts.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Simulate a verifier with such drafters; print the gain over plain decoding and what would raise it."""
    if preset not in PRESETS:
        raise typer.BadParameter(f"--preset is one of {', '.join(PRESETS)}, not {preset!r}")
    curve = PRESETS[preset] if pass_ms is None else PRESETS[preset].scaled(pass_ms)
    setting = Setting(
        curve, sessions, round_trip_ms, draft_step_ms, (acceptance,), drafters=drafters, seed=seed
    )
    found = answer(setting)
    if as_json:
        print(json.dumps(_as_dict(found), indent=2))
    else:
        _show(found)


def answer(setting: Setting) -> Answer:
    """Simulate the setting, its neighbours, and where the gain crosses WORTH_IT."""
    result = _mean(setting)
    changes = {name: _mean(changed).gain for name, changed in _changes(setting).items()}
    notable = {name: gain for name, gain in changes.items() if gain > NOTABLE * result.gain}
    return Answer(
        setting,
        result,
        dict(sorted(notable.items(), key=lambda change: -change[1])),
        _first_worth(lambda share: replace(setting, acceptance=(share * MOST_ACCEPTANCE,)), MOST_ACCEPTANCE),
        _first_worth(
            lambda share: replace(setting, round_trip_ms=(1 - share) * MOST_ROUND_TRIP_MS),
            MOST_ROUND_TRIP_MS,
            falling=True,
        ),
    )


def _mean(setting: Setting) -> Result:
    """Return what the setting gives, each number the mean over SEEDS texts: the setting's and the next ones."""
    results = [simulate(replace(setting, seed=setting.seed + number), TURNS) for number in range(SEEDS)]
    return Result(*(fmean(getattr(one, field.name) for one in results) for field in fields(Result)))


def _changes(setting: Setting) -> dict[str, Setting]:
    changes = {}
    if setting.round_trip_ms:
        changes["half the round trip"] = replace(setting, round_trip_ms=setting.round_trip_ms / 2)
    if setting.step_ms:
        changes["a drafter twice as fast"] = replace(setting, step_ms=setting.step_ms / 2)
        changes["twice the drafters"] = replace(setting, drafters=2 * setting.drafters)
    if setting.acceptance[0] < 1:
        better = tuple((2 * one + 1) / 3 for one in setting.acceptance)
        changes["a third fewer refusals"] = replace(setting, acceptance=better)
    if setting.sessions > 1:
        changes["half the sessions"] = replace(setting, sessions=setting.sessions // 2)
    return changes


def _first_worth(at: Callable[[float], Setting], span: float, *, falling: bool = False) -> float | None:
    """Return where, from the worst (0) to the best (1) of a span, the gain first reaches WORTH_IT."""
    low, high = 0.0, 1.0
    if simulate(at(high), BISECTION_TURNS).gain < WORTH_IT:
        return None
    if simulate(at(low), BISECTION_TURNS).gain >= WORTH_IT:
        high = low
    for _ in range(BISECTIONS if high else 0):
        middle = (low + high) / 2
        if simulate(at(middle), BISECTION_TURNS).gain >= WORTH_IT:
            high = middle
        else:
            low = middle
    return round(span * (1 - high if falling else high), 2)


def _as_dict(found: Answer) -> dict[str, Any]:
    setting = found.setting
    return {
        "gain": round(found.result.gain, 3),
        "plain_tokens_per_s": round(1e3 * setting.sessions / setting.plain_ms, 1),
        "tokens_per_s": round(1e3 * setting.sessions / setting.plain_ms * found.result.gain, 1),
        **{name: value for name, value in found.result.as_dict().items() if name != "gain"},
        "gain_with": {name: round(gain, 3) for name, gain in found.changes.items()},
        "worth_it_at": WORTH_IT,
        "least_acceptance": found.least_acceptance,
        "longest_round_trip_ms": found.longest_round_trip_ms,
    }


def _show(found: Answer) -> None:
    console, facts = answer_console(), _as_dict(found)
    result = found.result
    console.print(
        f"[bold]{result.gain:.2f} times[/] plain decoding: {facts['tokens_per_s']:g} instead of "
        f"{facts['plain_tokens_per_s']:g} tokens/s, {result.tokens_per_pass:.2f} tokens per pass, "
        f"{result.wait_ms:.1f} ms of waiting per pass, drafters busy {result.drafter_busy:.0%} of the time"
    )
    if found.changes:
        table = Table(box=SIMPLE)
        table.add_column("change")
        table.add_column("gain over plain", justify="right")
        for name, gain in found.changes.items():
            table.add_row(name, f"{gain:.2f}")
        console.print(table)
    else:
        console.print(f"No change looked at gives {NOTABLE - 1:.0%} more.")
    least, longest = found.least_acceptance, found.longest_round_trip_ms
    console.print(
        "Drafting pays ({:.0%} or more) {}; {}.".format(
            WORTH_IT - 1,
            "at no acceptance tried" if least is None else f"from an acceptance of {least:g}",
            "at no round trip tried" if longest is None else f"up to a round trip of {longest:g} ms",
        )
    )
