"""Predicted against measured gain of look-up drafting, prompt by prompt, on the real services.

Every prompt is answered plainly and with the verifier's own look-up, in turns (A B B A …). From the passes of
the drafted answers come, for each category, how often look-up finds something and how often a token at each depth
is accepted; from all passes, what a pass of so many rows takes. The simulation (forerun/simulation) is given these
and nothing else, and its gain is set beside the measured one. JSON and PNG in results/.

    python benchmarks/predict.py [--prompts FILE] [--limit N] [--max-tokens 64] [--out results]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import track
from rich.table import Table

from forerun.cli.client import Client
from forerun.cli.cores import share_out
from forerun.cli.prompts import Prompt, read_prompts
from forerun.cli.stack import Stack
from forerun.core.types import PassRecord
from forerun.engine.cores import usable_cores
from forerun.simulation.setting import PassCurve, Setting
from forerun.simulation.world import simulate
from gateway.request import GenerationRequest

DEPTHS = 8  # acceptance is taken per depth up to here; deeper tokens share the last
FEWEST = 5  # passes of a number of rows before their median counts
WITHIN = 0.15


@dataclass
class Group:
    """What was measured of one category, or of all of them."""

    plain_ms: float = 0.0
    drafted_ms: float = 0.0
    tokens: int = 0
    looked: int = 0  # passes before which nothing was left over, so that the text was searched
    found: int = 0  # of these, with something to check
    records: list[PassRecord] = field(default_factory=list)

    def take(self, records: Sequence[PassRecord]) -> None:
        """These are the passes of one drafted answer."""
        for before, after in pairwise(records):
            self.looked += not before.num_held
            self.found += not before.num_held and after.num_tested > 0
        self.records += records

    @property
    def gain(self) -> float:
        """Tokens per second with look-up over plain, both through the whole stack."""
        return self.plain_ms / self.drafted_ms

    def setting(self, curve: PassCurve) -> Setting:
        """The same look-up for the simulation."""
        tested, accepted = [0] * DEPTHS, [0] * DEPTHS
        for record in self.records:
            for depth in range(min(record.num_tested, DEPTHS)):
                tested[depth] += 1
                accepted[depth] += depth < record.num_accepted
        rates = tuple((a + 0.5) / (t + 1.0) for a, t in zip(accepted, tested, strict=True))
        return Setting(curve, acceptance=rates, finds=self.found / max(self.looked, 1))


async def measure(prompts: Sequence[Prompt], max_tokens: int, console: Console) -> list[tuple[str, Group]]:
    """One group a prompt, with its category. Raises SystemExit where a text differs."""
    measured: list[tuple[str, Group]] = []
    async with Stack(shares=share_out(usable_cores(), verifiers=1, sources=[])) as stack:
        store, verifier = stack.add_store(), stack.add_verifier(lookup=True)
        await stack.start([store, verifier])
        gateway = stack.add_gateway(store.address, [verifier], [])
        await stack.start([gateway])
        async with Client(gateway.address) as client:
            await client.answer(_request(prompts[0], max_tokens))  # warm
            for number, prompt in enumerate(track(prompts, "prompts", console=console)):
                group, texts = Group(), set()
                for plain in (True, False) if number % 2 else (False, True):
                    answer = await client.answer(replace(_request(prompt, max_tokens), no_draft=plain))
                    opened, finished = answer.complete()
                    texts.add(tuple(answer.token_ids))
                    # From the first token on: the prompt's passes are the same for both.
                    took = finished.timings.total_ms - finished.timings.first_token_ms
                    group.plain_ms += plain * took
                    group.drafted_ms += (not plain) * took
                    if not plain:
                        session = await client.session(opened.session_id, passes=True)
                        group.take([one.record for one in session.passes if one.record][1:])
                        group.tokens = len(answer.token_ids)
                if len(texts) != 1:
                    raise SystemExit(f"prompt {number}: the texts differ")
                measured.append((prompt.category, group))
    return measured


def _request(prompt: Prompt, max_tokens: int) -> GenerationRequest:
    return GenerationRequest(messages=prompt.messages, max_tokens=max_tokens, ignore_end_tokens=True)


def pass_curve(records: Sequence[PassRecord]) -> PassCurve:
    """Median time by rows, of passes without prompt rows; never falling."""
    times: dict[int, list[int]] = defaultdict(list)
    for record in records:
        if not record.num_prefilled:
            times[record.num_rows].append(record.pass_us)
    knots: list[tuple[int, float]] = []
    for rows, taken in sorted(times.items()):
        if len(taken) >= FEWEST:
            floor = knots[-1][1] if knots else 0.0
            knots.append((rows, max(floor, statistics.median(taken) / 1000)))
    return PassCurve(tuple(knots))


def together(groups: Sequence[Group]) -> Group:
    """One group of several."""
    whole = Group()
    for group in groups:
        whole.plain_ms += group.plain_ms
        whole.drafted_ms += group.drafted_ms
        whole.tokens += group.tokens
        whole.looked += group.looked
        whole.found += group.found
        whole.records += group.records
    return whole


def compare(measured: Sequence[tuple[str, Group]]) -> tuple[PassCurve, list[dict[str, Any]]]:
    """A row a category and one for all: what was measured, what was predicted."""
    curve = pass_curve([record for _, group in measured for record in group.records])
    groups: dict[str, list[Group]] = defaultdict(list)
    for category, group in measured:
        groups[category].append(group)
        groups["all"].append(group)
    rows = []
    for category, members in groups.items():
        group = together(members)
        setting = group.setting(curve)
        predicted = simulate(setting, turns=4000, warm_up=200)
        passes_alone = group.tokens / max(len(group.records), 1)
        rows.append(
            {
                "category": category,
                "prompts": len(members),
                "finds": round(setting.finds, 3),
                "acceptance": [round(rate, 3) for rate in setting.acceptance],
                "tokens_per_pass": round(passes_alone, 3),
                "measured": round(group.gain, 3),
                "predicted": round(predicted.gain, 3),
                "off": round(predicted.gain / group.gain - 1, 3),
            }
        )
    return curve, rows


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Two bars a category: predicted and measured."""
    mpl.use("Agg")
    figure, panel = plt.subplots(figsize=(1.1 * len(rows) + 2, 4), layout="constrained")
    places = range(len(rows))
    panel.bar([p - 0.2 for p in places], [row["predicted"] for row in rows], 0.4, label="predicted")
    panel.bar([p + 0.2 for p in places], [row["measured"] for row in rows], 0.4, label="measured")
    panel.axhline(1.0, color="black", linewidth=0.8)
    panel.set_xticks(places, [row["category"] for row in rows], rotation=30, ha="right")
    panel.set_ylabel("tokens/s over plain decoding")
    panel.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, predict, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("prompts.jsonl"))
    parser.add_argument("--limit", type=int, default=None, help="the first so many prompts")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    prompts = read_prompts(arguments.prompts)[: arguments.limit]
    console = Console(stderr=True)
    curve, rows = compare(asyncio.run(measure(prompts, arguments.max_tokens, console)))
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"pass_ms_by_rows": curve.knots, "rows": rows}
    (arguments.out / "predict.json").write_text(json.dumps(document, indent=1))
    draw(rows, arguments.out / "predict.png")
    table = Table("category", "prompts", "finds", "first token", "predicted", "measured", "off", box=SIMPLE)
    for row in rows:
        off = f"{row['off']:+.0%}"
        table.add_row(
            row["category"],
            str(row["prompts"]),
            f"{row['finds']:.2f}",
            f"{row['acceptance'][0]:.2f}",
            f"{row['predicted']:.2f}",
            f"{row['measured']:.2f}",
            off if abs(row["off"]) <= WITHIN else f"[red]{off}[/]",
        )
    Console(highlight=False).print(table)


if __name__ == "__main__":
    main()
