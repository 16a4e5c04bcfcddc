"""A bench run as numbers, a table and a picture; ratios first."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from forerun.cli.bench.single import BenchSettings, Measured, Run
from forerun.engine.cores import usable_cores

PAIRS = (("plain", "transformers"), ("ngram", "plain"), ("ngram", "transformers"), ("plain", "engine"))
NAMES = {
    "plain": "Forerun, plain",
    "ngram": "Forerun, look-up",
    "engine": "bare engine",
    "transformers": "transformers",
}


def summary(settings: BenchSettings, measured: Measured) -> dict[str, Any]:
    """Return the report: ratios, rates over all prompts (prefill included), conditions, every run."""
    runs = measured.runs
    contestants = list(dict.fromkeys(run.contestant for run in runs))
    by_key = {(run.contestant, run.round, run.prompt_id): run for run in runs}
    plain = [run for run in runs if run.contestant == "plain"]
    return {
        "ratios": {
            f"{upper}/{lower}": _ratio(upper, lower, plain, by_key)
            for upper, lower in PAIRS
            if {upper, lower} <= set(contestants)
        },
        "rates": {name: _rates([run for run in runs if run.contestant == name]) for name in contestants},
        "identical": all(
            run.token_ids == by_key["plain", run.round, run.prompt_id].token_ids
            for run in runs
            if run.contestant == "ngram"
        ),
        "conditions": {
            "model": settings.model,
            "dtype": settings.dtype,
            "max_tokens": settings.max_tokens,
            "rounds": settings.rounds,
            "prompts": len(settings.prompts),
            "cores": usable_cores(),
            "threads": measured.threads,
            "others_cpu_share": measured.others_cpu_share,
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "runs": [asdict(run) for run in runs],
    }


def _ratio(
    upper: str, lower: str, plain: Sequence[Run], by_key: dict[tuple[str, int, str], Run]
) -> dict[str, Any]:
    each = [
        rate(by_key[upper, run.round, run.prompt_id]) / rate(by_key[lower, run.round, run.prompt_id])
        for run in plain
    ]
    median = statistics.median(each)
    return {
        "median": median,
        "least": min(each),
        "most": max(each),
        "text": f"{median:.2f}x ({min(each):.2f} to {max(each):.2f})  {NAMES[upper]}  over  {NAMES[lower]}",
    }


def rate(run: Run) -> float:
    """Return tokens/s of one answer, prefill included."""
    return len(run.token_ids) / run.seconds


def _rates(runs: Sequence[Run]) -> dict[str, float | None]:
    tokens = sum(len(run.token_ids) for run in runs)
    later = sum(run.seconds - run.first_token_s for run in runs)
    passes = [run.passes for run in runs if run.passes is not None]
    idle = [run.idle_cpu_s for run in runs if run.idle_cpu_s is not None]
    seconds = sum(run.seconds for run in runs)
    return {
        "tokens_per_s": tokens / seconds,
        "tokens_per_s_after_first": (tokens - len(runs)) / later if later else None,
        "tokens_per_pass": tokens / sum(passes) if passes else None,
        "services_cpu_share": sum(idle) / seconds if idle else None,
    }


def table(report: dict[str, Any]) -> Table:
    """Return the rates as a table."""
    shown = Table(box=SIMPLE, title="tokens/s of whole answers")
    for column in ("", "tokens/s", "after the first", "tokens/pass", "idle services' CPU"):
        shown.add_column(column, justify="right" if column else "left")
    for name, rates in report["rates"].items():
        cells = [
            _cell(rates[key], form)
            for key, form in (
                ("tokens_per_s", ".1f"),
                ("tokens_per_s_after_first", ".1f"),
                ("tokens_per_pass", ".2f"),
                ("services_cpu_share", ".1%"),
            )
        ]
        shown.add_row(NAMES[name], *cells)
    return shown


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def picture(report: dict[str, Any], path: Path) -> None:
    """The file shows tokens/s of every contestant by category."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = report["runs"]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    contestants = list(report["rates"])
    width = 0.8 / len(contestants)
    figure, axes = plt.subplots(figsize=(max(6.0, len(categories)), 4.0), layout="constrained")
    for index, name in enumerate(contestants):
        heights = [_category_rate(rows, name, category) for category in categories]
        places = [place + (index - (len(contestants) - 1) / 2) * width for place in range(len(categories))]
        axes.bar(places, heights, width, label=NAMES[name])
    axes.set_xticks(range(len(categories)), categories, rotation=30, ha="right")
    axes.set_ylabel("tokens/s, prefill included")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _category_rate(rows: Sequence[dict[str, Any]], contestant: str, category: str) -> float:
    mine = [row for row in rows if row["contestant"] == contestant and row["category"] == category]
    seconds: float = sum(row["seconds"] for row in mine)
    return sum(len(row["token_ids"]) for row in mine) / seconds
