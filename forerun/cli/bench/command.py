"""`forerun bench`: speed, judged as ratios within one run."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

import forerun
from forerun.cli.bench.report import picture, summary, table
from forerun.cli.bench.single import BenchSettings, run_single
from forerun.cli.flags import Dtype, Target
from forerun.cli.foreground import answer_console, progress_console, run
from forerun.cli.prompts import one_of_each_category, read_prompts

OWN_PROMPTS = Path(forerun.__file__).parents[1] / "benchmarks" / "prompts.jsonl"
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
    prompts: Annotated[
        Path, typer.Option(help="JSON lines; the first prompt of each category is asked.")
    ] = OWN_PROMPTS,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first categories.")] = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Most tokens an answer.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, help="Times everything is run.")] = 1,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    results: Annotated[Path, typer.Option(help="Folder for the JSON and the picture.")] = Path("results"),
) -> None:
    """One session at a time: plain, look-up drafting, the bare engine and transformers, interleaved."""
    settings = BenchSettings(
        prompts=tuple(one_of_each_category(read_prompts(prompts))[:limit]),
        max_tokens=max_tokens,
        rounds=rounds,
        model=model,
        dtype=dtype,
    )
    measured = run(run_single(settings, progress_console()))
    report = summary(settings, measured)
    results.mkdir(parents=True, exist_ok=True)
    path = results / f"bench-single-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
    path.write_text(json.dumps(report, indent=1))
    picture(report, path.with_suffix(".png"))
    console = answer_console()
    for line in report["ratios"].values():
        console.print(f"{line['text']}", style="bold", markup=False)
    console.print(table(report))
    console.print(f"{path} and {path.with_suffix('.png').name}", style="dim", markup=False)
    others = report["conditions"]["others_cpu_share"]
    if others > BUSY_SHARE:
        console.print(
            f"other processes took {others:.0%} of this machine: these are not its speeds", style="yellow"
        )
    if not report["identical"]:
        console.print("text with drafting differs from the plain text", style="bold red")
        raise typer.Exit(1)
