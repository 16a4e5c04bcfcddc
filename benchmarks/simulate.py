"""Gain of drafting over plain decoding, simulated over acceptance, sessions and round trips; JSON and PNG in results/.

Also a cluster on paper: 1,000 verifiers with so many drafters each. Virtual time, the services' own pacing and
draft trees (forerun/simulation); the same seed gives the same numbers. Cells below 1 are faults and are listed.

    python benchmarks/simulate.py [--quick] [--preset 70b-gpu] [--seed 0] [--out results]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import TwoSlopeNorm
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.cli.rounds import counted
from forerun.simulation.setting import PRESETS, Setting
from forerun.simulation.world import simulate

ACCEPTANCE = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)
SESSIONS = (1, 8, 64, 512)
ROUND_TRIPS_MS = (0.0, 2.0, 10.0, 30.0, 100.0)
QUICK = ((0.0, 0.5, 0.9), (1, 64), (0.0, 10.0, 100.0))
# A drafter's step: a small model beside the target of the same name.
STEP_MS = {"smollm2-cpu": 1.5, "70b-gpu": 2.0, "7b-gpu": 1.0}
SESSIONS_A_DRAFTER = 64
VERIFIERS, CLUSTER_DRAFTERS, CLUSTER_SESSIONS = 1000, (1, 2, 4, 8), 64
TURNS, WARM_UP = 320, 160
SLOWER = 0.98  # a gain below this is slower than plain; above it is what learning and free tests cost

Row = dict[str, Any]


def main() -> None:
    """Simulate, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", action="append", choices=sorted(PRESETS), help="repeatable; default all")
    parser.add_argument("--quick", action="store_true", help="a coarse grid")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    axes = QUICK if arguments.quick else (ACCEPTANCE, SESSIONS, ROUND_TRIPS_MS)
    presets = arguments.preset or list(PRESETS)
    progress = Console(stderr=True)
    cells = list(grid(presets, axes))
    rows = [
        row | measured(row, arguments.seed)
        for row in track(cells, "grid", console=progress, disable=not progress.is_terminal)
    ]
    cluster = [
        row | planned(row, arguments.seed)
        for row in track(
            list(cluster_cells(presets)), "cluster", console=progress, disable=not progress.is_terminal
        )
    ]
    arguments.out.mkdir(parents=True, exist_ok=True)
    slower = [row for row in rows if row["gain"] < SLOWER]
    document = {"seed": arguments.seed, "step_ms": STEP_MS, "grid": rows, "cluster": cluster}
    (arguments.out / "simulation.json").write_text(json.dumps(document | {"slower": slower}, indent=1))
    draw(rows, presets, axes, arguments.out / "simulation.png")
    report(rows, slower, cluster, arguments.out)


def grid(
    presets: Sequence[str], axes: tuple[Sequence[float], Sequence[int], Sequence[float]]
) -> Iterator[Row]:
    """The cells to be simulated."""
    for preset, (acceptance, sessions, trip) in product(presets, product(*axes)):
        drafters = max(1, sessions // SESSIONS_A_DRAFTER)
        yield {
            "preset": preset,
            "acceptance": acceptance,
            "sessions": sessions,
            "round_trip_ms": trip,
            "drafters": drafters,
        }


def cluster_cells(presets: Sequence[str]) -> Iterator[Row]:
    """The clusters to be planned: every verifier is like every other, so one of them is simulated."""
    for preset, acceptance, trip, drafters in product(presets, (0.6, 0.8), (2.0, 30.0), CLUSTER_DRAFTERS):
        yield {
            "preset": preset,
            "acceptance": acceptance,
            "sessions": CLUSTER_SESSIONS,
            "round_trip_ms": trip,
            "drafters": drafters,
        }


def measured(row: Row, seed: int) -> Row:
    """What the simulation says of one cell."""
    setting = Setting(
        PRESETS[row["preset"]],
        row["sessions"],
        row["round_trip_ms"],
        STEP_MS[row["preset"]],
        (row["acceptance"],),
        drafters=row["drafters"],
        carries=SESSIONS_A_DRAFTER // 4,
        seed=seed,
    )
    return {"plain_ms": round(setting.plain_ms, 3)} | simulate(setting, TURNS, WARM_UP).as_dict()


def planned(row: Row, seed: int) -> Row:
    """One cell for a thousand verifiers: drafters in all, and plain verifiers that the gain stands for."""
    found = measured(row, seed)
    plain = 1e3 * row["sessions"] / found["plain_ms"]
    return found | {
        "verifiers": VERIFIERS,
        "drafters_in_all": VERIFIERS * row["drafters"],
        "tokens_per_s": round(VERIFIERS * plain * found["gain"]),
        "plain_verifiers_worth": round(VERIFIERS * (found["gain"] - 1)),
    }


def draw(
    rows: Sequence[Row],
    presets: Sequence[str],
    axes: tuple[Sequence[float], Sequence[int], Sequence[float]],
    path: Path,
) -> None:
    """A heat map for each preset and number of sessions: acceptance across, round trip up, gain in each cell."""
    mpl.use("Agg")
    acceptance, sessions, trips = axes
    gains = {
        (row["preset"], row["sessions"], row["round_trip_ms"], row["acceptance"]): row["gain"] for row in rows
    }
    figure, panels = plt.subplots(
        len(presets),
        len(sessions),
        figsize=(4.2 * len(sessions) + 1, 3.0 * len(presets) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    norm = TwoSlopeNorm(1.0, 0.5, max(2.0, *gains.values()))
    image = None
    for (i, preset), (j, count) in product(enumerate(presets), enumerate(sessions)):
        panel = panels[i][j]
        values = np.array([[gains[preset, count, trip, one] for one in acceptance] for trip in trips])
        image = panel.imshow(values, norm=norm, cmap="RdYlGn", origin="lower", aspect="auto")
        panel.set_title(f"{preset}, {count} session{'s' * (count > 1)}", fontsize=10)
        panel.set_xticks(range(len(acceptance)), [f"{one:g}" for one in acceptance])
        panel.set_yticks(range(len(trips)), [f"{trip:g}" for trip in trips])
        for y, x in product(range(len(trips)), range(len(acceptance))):
            panel.text(x, y, f"{values[y, x]:.2f}", ha="center", va="center", fontsize=7)
    figure.supxlabel("acceptance (a drafted token is right, if those before it are)")
    figure.supylabel("round trip, ms")
    figure.suptitle("Tokens per second over plain decoding (simulated)")
    if image is not None:
        figure.colorbar(image, ax=panels, label="gain over plain, 1 = as fast")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def report(rows: Sequence[Row], slower: Sequence[Row], cluster: Sequence[Row], out: Path) -> None:
    """Print the best of the grid in one table, its faults, and the cluster."""
    console = Console(highlight=False)
    trips = sorted({row["round_trip_ms"] for row in rows})
    table = Table("preset", "sessions", "acceptance", box=SIMPLE, title="gain over plain, by round trip")
    for trip in trips:
        table.add_column(f"{trip:g} ms", justify="right")
    table_rows: dict[tuple[str, int, float], list[str]] = {}
    for row in rows:
        shown = f"[red]{row['gain']:.2f}[/]" if row["gain"] < SLOWER else f"{row['gain']:.2f}"
        table_rows.setdefault((row["preset"], row["sessions"], row["acceptance"]), []).append(shown)
    for (preset, sessions, acceptance), gains in table_rows.items():
        table.add_row(preset, str(sessions), f"{acceptance:g}", *gains)
    console.print(table)
    worst = min(rows, key=lambda row: row["gain"])
    console.print(
        f"{len(slower)} of {len(rows)} cells are slower than plain (below {SLOWER}); the worst is "
        f"{worst['gain']:.2f}: {worst['preset']}, {counted(worst['sessions'], 'session')}, "
        f"{worst['round_trip_ms']:g} ms, acceptance {worst['acceptance']:g}"
    )
    idle = [preset for preset in PRESETS if saves_none(preset, cluster)]
    if saving := [row for row in cluster if row["preset"] not in idle]:
        console.print(cluster_table(saving))
    for preset in idle:
        console.print(why_none(preset), soft_wrap=True)
    console.print(f"{out}/simulation.json, {out}/simulation.png")


def cluster_table(cluster: Sequence[Row]) -> Table:
    """The thousand verifiers, by preset, acceptance, round trip and number of drafters."""
    title = f"{VERIFIERS:,} verifiers, {CLUSTER_SESSIONS} sessions each"
    columns = ("preset", "acceptance", "round trip", "drafters", "gain", "worth plain verifiers")
    plan = Table(*columns, box=SIMPLE, title=title)
    for row in cluster:
        plan.add_row(
            row["preset"],
            f"{row['acceptance']:g}",
            f"{row['round_trip_ms']:g} ms",
            f"{row['drafters_in_all']:,}",
            f"{row['gain']:.2f}",
            f"{row['plain_verifiers_worth']:,}",
        )
    return plan


def saves_none(preset: str, cluster: Sequence[Row]) -> bool:
    """Whether the preset was planned and no cluster of it is faster, to two digits, than its plain verifiers."""
    gains = [row["gain"] for row in cluster if row["preset"] == preset]
    return bool(gains) and all(round(gain, 2) == 1.0 for gain in gains)


def why_none(preset: str) -> str:
    """One line for a preset whose drafters save no verifier."""
    curve = PRESETS[preset]
    plain_ms = curve.ms(CLUSTER_SESSIONS)
    row_ms, token_ms = curve.ms(CLUSTER_SESSIONS + 1) - plain_ms, plain_ms / CLUSTER_SESSIONS
    said = f"{preset}: drafters save none of {VERIFIERS:,} verifiers with {CLUSTER_SESSIONS} sessions each"
    if row_ms < token_ms:
        return f"{said}: what is checked brings no more than it costs"
    return f"{said}: a guess adds {row_ms:.1f} ms to a pass, a plain token takes {token_ms:.1f} ms, so none is checked"


if __name__ == "__main__":
    main()
