"""The picture of a run, drawn from its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# The promise a worst case is held to.
NEVER_SLOWER = 0.97


def draw(report: Mapping[str, Any], path: Path) -> None:
    """The file, of the kind its ending names, shows the run.

    `latency`: tokens/s as a multiple of plain's, over the round trip; `worst`: ratios with their range; else bars
    of tokens/s, by category for one session and by group for several.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(10.0, 4.5), layout="constrained")
    {"latency": _lines, "worst": _ratios}.get(report["bench"], _bars)(report, axes)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(report: Mapping[str, Any], axes: Any) -> None:
    heights = _by_category(report) if report["bench"] == "single" else _by_group(report)
    places = list(dict.fromkeys(place for place, _ in heights))
    set_ups = list(dict.fromkeys(row["set_up"] for row in report["rates"]))
    width = 0.8 / len(set_ups)
    for index, set_up in enumerate(set_ups):
        shift = (index - (len(set_ups) - 1) / 2) * width
        at = [place + shift for place in range(len(places))]
        axes.bar(
            at, [heights.get((place, set_up), 0.0) for place in places], width, label=report["labels"][set_up]
        )
    axes.set_xticks(range(len(places)), places, rotation=30 if len(places) > 5 else 0)
    axes.set_ylabel("tokens/s, prefill included")
    axes.legend(fontsize="small", ncols=2)


def _by_group(report: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    return {(row["group"], row["set_up"]): row["tokens_per_s"] for row in report["rates"]}


def _by_category(report: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], tuple[int, float]] = {}
    for sample in report["samples"]:
        for answer in sample["answers"]:
            key = (answer["category"], sample["set_up"])
            tokens, seconds = sums.get(key, (0, 0.0))
            sums[key] = (tokens + answer["num_tokens"], seconds + answer["seconds"])
    return {key: tokens / seconds for key, (tokens, seconds) in sums.items()}


def _lines(report: Mapping[str, Any], axes: Any) -> None:
    plain = {row["group"]: row["tokens_per_s"] for row in report["rates"] if row["set_up"] == "plain"}
    points: dict[str, list[tuple[float, float]]] = {}
    for row in report["rates"]:
        round_trip_ms, ratio = float(row["group"].split()[0]), row["tokens_per_s"] / plain[row["group"]]
        points.setdefault(row["set_up"], []).append((round_trip_ms, ratio))
    for set_up, at in points.items():
        axes.plot(*zip(*sorted(at), strict=True), marker="o", label=report["labels"][set_up])
    axes.set_xlabel("round trip between drafter and verifier, ms")
    axes.set_ylabel("tokens/s over plain's")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize="small")


def _ratios(report: Mapping[str, Any], axes: Any) -> None:
    rows: Sequence[Mapping[str, Any]] = report["ratios"]
    medians = [row["median"] for row in rows]
    below = [row["median"] - row["least"] for row in rows]
    above = [row["most"] - row["median"] for row in rows]
    axes.bar(range(len(rows)), medians, 0.6, yerr=[below, above], capsize=4)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.axhline(NEVER_SLOWER, color="tab:red", linewidth=0.8, linestyle="--", label=f"{NEVER_SLOWER}")
    axes.set_xticks(range(len(rows)), [row["group"] for row in rows])
    axes.set_ylabel("tokens/s over the best plain set-up's")
    axes.legend(fontsize="small")
