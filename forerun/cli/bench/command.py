"""`forerun bench`: speed, judged as ratios within one run."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from forerun.cli.bench import flags
from forerun.cli.bench.jobs import chosen
from forerun.cli.bench.report import Measured, category_table, rate_table, ratio_table, summary
from forerun.cli.bench.settings import BenchSettings
from forerun.cli.bench.setups import BASELINES, check_names, of_one_machine, over_a_network
from forerun.cli.flags import Dtype, Target
from forerun.cli.foreground import answer_console, progress_console, run
from forerun.cli.prompts import one_of_each_category, read_prompts
from forerun.errors import InvalidRequest

BUSY_SHARE = 0.1  # of the processor time; above it a run says more about the neighbours

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="Measure speed, as ratios within one run.",
)


@app.callback()
def _bench() -> None:
    pass


@app.command()
def single(
    *,
    prompts: flags.Prompts = flags.OWN_PROMPTS,
    category: flags.Categories = None,
    limit: flags.Limit = None,
    max_tokens: flags.MaxTokens = 128,
    repeat: Annotated[int, typer.Option("--repeat", "--rounds", min=1, help="Times everything is run.")] = 1,
    setup: flags.SetUps = None,
    drafter_model: flags.DrafterModel = None,
    round_trip_ms: flags.RoundTrip = 10.0,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    out: Annotated[
        Path, typer.Option("--out", "--results", help="Folder for the JSON and the picture.")
    ] = flags.DEFAULT_OUT,
) -> None:
    """One session at a time, the first prompt of each category: every set-up, the bare engine, other engines."""
    from forerun.cli.bench.single import run_single

    asked = chosen(one_of_each_category(read_prompts(prompts)), category or (), limit)
    check_names(setup or (), of_one_machine(drafter_model), tuple(BASELINES))
    settings = BenchSettings(
        tuple(asked), max_tokens, repeat, model, dtype, drafter_model, tuple(setup or ()), round_trip_ms
    )
    _run(lambda console: run_single(settings, console), out, ("lookup", "plain"))


@app.command()
def load(
    *,
    prompts: flags.Prompts = flags.OWN_PROMPTS,
    category: flags.Categories = None,
    limit: flags.Limit = None,
    max_tokens: flags.MaxTokens = 64,
    repeat: flags.Repeat = 3,
    sessions: Annotated[str, typer.Option(help="Answers under way at a time, e.g. 1,8,32.")] = "1,8,32",
    waves: Annotated[int, typer.Option(min=2, help="Answers a session gives, one after the other.")] = 3,
    setup: flags.SetUps = None,
    drafter_model: flags.DrafterModel = None,
    round_trip_ms: flags.RoundTrip = 10.0,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    out: flags.Out = flags.DEFAULT_OUT,
) -> None:
    """Many sessions at a time, a new one beginning as one ends; transformers in left-padded batches."""
    from forerun.cli.bench.field import MOST_SESSIONS
    from forerun.cli.bench.load import run_load

    counts = flags.whole_numbers(sessions, flag="--sessions", least=1, most=MOST_SESSIONS)
    asked = chosen(read_prompts(prompts), category or (), limit)
    check_names(setup or (), of_one_machine(drafter_model), tuple(BASELINES))
    settings = BenchSettings(
        tuple(asked), max_tokens, repeat, model, dtype, drafter_model, tuple(setup or ()), round_trip_ms
    )
    _run(lambda console: run_load(settings, counts, waves, console), out, ("lookup", "plain"))


@app.command()
def latency(
    *,
    prompts: flags.Prompts = flags.OWN_PROMPTS,
    category: flags.Categories = None,
    limit: flags.Limit = None,
    max_tokens: flags.MaxTokens = 64,
    repeat: flags.Repeat = 1,
    round_trips_ms: Annotated[
        str, typer.Option(help="Round trips between drafter and verifier, in milliseconds.")
    ] = "0,5,20,50,100",
    setup: flags.SetUps = None,
    drafter_model: flags.DrafterModel = None,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    out: flags.Out = flags.DEFAULT_OUT,
) -> None:
    """A relay delays all between drafter and verifier: drafting ahead, drafting in turns, and no network."""
    from forerun.cli.bench.latency import MOST_ROUND_TRIP_MS, run_latency

    delays = flags.numbers(round_trips_ms, flag="--round-trips-ms", least=0, most=MOST_ROUND_TRIP_MS)
    asked = chosen(one_of_each_category(read_prompts(prompts)), category or (), limit)
    check_names(setup or (), over_a_network(drafter_model))
    settings = BenchSettings(
        tuple(asked), max_tokens, repeat, model, dtype, drafter_model, tuple(setup or ())
    )
    _run(lambda console: run_latency(settings, delays, console), out, ("remote", "synchronous"))


@app.command()
def worst(
    *,
    prompts: flags.Prompts = flags.OWN_PROMPTS,
    category: flags.Categories = None,
    limit: flags.Limit = None,
    max_tokens: flags.MaxTokens = 64,
    repeat: flags.Repeat = 1,
    sessions: Annotated[int, typer.Option(min=1, max=256, help="Sessions of the crowd.")] = 32,
    case: Annotated[
        list[str] | None, typer.Option(help="Measure only this case; repeatable (default: all).")
    ] = None,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    out: flags.Out = flags.DEFAULT_OUT,
) -> None:
    """Cases in which drafting cannot help, each against the best plain set-up: never fewer than five pairs."""
    from forerun.cli.bench.worst import CASES, run_worst

    if unknown := [one for one in case or () if one not in CASES]:
        raise InvalidRequest(f"no case {', '.join(unknown)}; there are {', '.join(CASES)}", field="case")
    asked = chosen(one_of_each_category(read_prompts(prompts)), category or (), limit)
    settings = BenchSettings(tuple(asked), max_tokens, repeat, model, dtype)
    cases = [one for one in CASES if not case or one in case]
    _run(lambda console: run_worst(settings, cases, sessions, console), out, None)


def _run(
    bench: Callable[[Console], Coroutine[object, object, Measured]],
    out: Path,
    by_category: tuple[str, str] | None,
) -> None:
    """The bench has run, its report is shown and saved; exits 1 if a text with drafting is another one."""
    _check_writable(out)
    report = summary(run(bench(progress_console())))
    path = _save(report, out)
    console = answer_console()
    console.print(ratio_table(report))
    if by_category and (table := category_table(report, by_category)):
        console.print(table)
    console.print(rate_table(report))
    _show_notes(report["notes"], console)
    console.print(f"{path} and {path.with_suffix('.png').name}", style="dim", markup=False)
    others = report["conditions"]["others_cpu_share"]
    if others > BUSY_SHARE:
        console.print(
            f"other processes took {others:.0%} of this machine: these are not its speeds", style="yellow"
        )
    if not report["identical"]:
        console.print("a text differs from the plain one", style="bold red")
        raise typer.Exit(1)


def _show_notes(notes: Sequence[str], console: Console) -> None:
    for note in notes:
        console.print(note, markup=False)


def _check_writable(out: Path) -> None:
    """The folder is there. Raises InvalidRequest now rather than after the run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise InvalidRequest(f"cannot write to {out}: {fault.strerror or fault}", field="out") from fault


def _save(report: dict[str, object], out: Path) -> Path:
    from forerun.cli.bench.picture import draw

    path = out / f"bench-{report['bench']}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(report, indent=1))
    draw(report, path.with_suffix(".png"))
    return path
