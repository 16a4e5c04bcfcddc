"""A run as numbers and tables; ratios first."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from forerun.cli.bench.course import Observation
from forerun.cli.bench.sample import Answered

REFERENCE = "plain"  # whose text is the text


@dataclass(frozen=True, slots=True)
class Measured:
    """All of a run. `labels`: of the set-ups, in the order of the tables. `pairs`: set-ups to
    compare, the first over the second. `notes`: what a reader must know.

    `exact`: those that must say the reference's text, token for token.
    """

    bench: str
    observations: tuple[Observation, ...]
    labels: Mapping[str, str]
    pairs: tuple[tuple[str, str], ...]
    exact: frozenset[str]
    notes: tuple[str, ...]
    conditions: Mapping[str, Any]


def summary(measured: Measured) -> dict[str, Any]:
    """Return the report: ratios, rates (prefill included), whether the texts agree, conditions, every sample."""
    by_group: dict[str, list[Observation]] = {}
    for one in measured.observations:
        by_group.setdefault(one.cell.group, []).append(one)
    different = _different(measured.observations)
    return {
        "bench": measured.bench,
        "ratios": [row for group, seen in by_group.items() for row in _ratios(group, seen, measured.pairs)],
        "categories": [
            row for group, seen in by_group.items() for row in _by_category(group, seen, measured.pairs)
        ],
        "rates": [
            row
            for group, seen in by_group.items()
            for row in _rates(group, seen, list(measured.labels), different)
        ],
        "identical": not any(set_up in measured.exact for set_up, _ in different),
        "notes": list(measured.notes),
        "labels": dict(measured.labels),
        "conditions": dict(measured.conditions),
        "samples": [_sample(one, different) for one in measured.observations],
    }


def _ratios(
    group: str, seen: Sequence[Observation], pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Compare cell by cell, so that what the machine did meanwhile falls on both sides."""
    rates = {(one.set_up, one.cell_number): one.sample.rate for one in seen}
    numbers = dict.fromkeys(one.cell_number for one in seen)
    for upper, lower in pairs:
        each = [
            rates[upper, number] / rates[lower, number]
            for number in numbers
            if (upper, number) in rates and (lower, number) in rates
        ]
        if each:
            yield {"group": group, "over": [upper, lower]} | _spread(each)


def _by_category(
    group: str, seen: Sequence[Observation], pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Compare answer by answer: tokens/s of one answer among those that ran beside it."""
    answers = {(one.set_up, one.cell_number, a.job): a for one in seen for a in one.sample.answers}
    categories = dict.fromkeys(answer.job.prompt.category for answer in answers.values())
    for upper, lower in pairs:
        for category in categories:
            each = [
                answer.rate / answers[lower, number, job].rate
                for (set_up, number, job), answer in answers.items()
                if set_up == upper and job.prompt.category == category and (lower, number, job) in answers
            ]
            if each:
                yield {"group": group, "category": category, "over": [upper, lower]} | _spread(each)


def _spread(each: Sequence[float]) -> dict[str, Any]:
    return {"median": statistics.median(each), "least": min(each), "most": max(each), "pairs": len(each)}


def _different(seen: Sequence[Observation]) -> dict[tuple[str, int], set[int]]:
    """Return, by set-up and cell, the answers whose text is not the reference's."""
    texts = {
        (one.cell_number, index): answer.token_ids
        for one in seen
        if one.set_up == REFERENCE
        for index, answer in enumerate(one.sample.answers)
    }
    found: dict[tuple[str, int], set[int]] = {}
    for one in seen:
        for index, answer in enumerate(one.sample.answers):
            if texts.get((one.cell_number, index), answer.token_ids) != answer.token_ids:
                found.setdefault((one.set_up, one.cell_number), set()).add(index)
    return found


def _rates(
    group: str,
    seen: Sequence[Observation],
    set_ups: Sequence[str],
    different: Mapping[tuple[str, int], set[int]],
) -> Iterator[dict[str, Any]]:
    for set_up in sorted({one.set_up for one in seen}, key=set_ups.index):
        mine = [one for one in seen if one.set_up == set_up]
        answers = [answer for one in mine for answer in one.sample.answers]
        seconds = sum(one.sample.seconds for one in mine)
        later_s = sum(answer.seconds - answer.first_token_s for answer in answers)
        idle = [one.sample.services_cpu_s for one in mine if one.sample.services_cpu_s is not None]
        wrong = sum(len(different.get((set_up, one.cell_number), ())) for one in mine)
        yield {
            "group": group,
            "set_up": set_up,
            "tokens_per_s": sum(one.sample.tokens for one in mine) / seconds,
            "tokens_per_s_after_first": _over(sum(len(a.token_ids) - 1 for a in answers), later_s),
            "first_token_ms": 1000 * statistics.median(answer.first_token_s for answer in answers),
            "tokens_per_pass": _tokens_per_pass(answers),
            "idle_services_cpu_share": sum(idle) / seconds if idle else None,
            "answers": len(answers),
            "same_text": len(answers) - wrong,
        }


def _tokens_per_pass(answers: Sequence[Answered]) -> float | None:
    passes = sum(answer.passes or 0 for answer in answers)
    return _over(sum(len(answer.token_ids) for answer in answers), passes)


def _over(count: float, total: float) -> float | None:
    return count / total if total else None


def _sample(one: Observation, different: Mapping[tuple[str, int], set[int]]) -> dict[str, Any]:
    wrong = different.get((one.set_up, one.cell_number), set())
    return {
        "cell": one.cell_number,
        "group": one.cell.group,
        "sessions": one.cell.sessions,
        "set_up": one.set_up,
        "tokens": one.sample.tokens,
        "seconds": one.sample.seconds,
        "answers": [
            {
                "prompt_id": answer.job.prompt.prompt_id,
                "category": answer.job.prompt.category,
                "number": answer.job.number,
                "num_tokens": len(answer.token_ids),
                "seconds": answer.seconds,
                "first_token_s": answer.first_token_s,
                "passes": answer.passes,
                "num_tested": answer.num_tested,
                "num_accepted": answer.num_accepted,
                # Only where someone will want to know where the texts part.
                **({"token_ids": answer.token_ids} if index in wrong else {}),
            }
            for index, answer in enumerate(one.sample.answers)
        ],
    }


def ratio_table(report: Mapping[str, Any]) -> Table:
    """Return the ratios as a table: what the run was for."""
    shown = Table(box=SIMPLE, title="ratios of tokens/s, pair by pair")
    labels, groups = report["labels"], {row["group"] for row in report["ratios"]}
    for column in ("", "ratio", "range", "pairs", "of", "over"):
        shown.add_column(column, justify="right" if column in {"ratio", "range", "pairs"} else "left")
    last = None
    for row in report["ratios"]:
        upper, lower = row["over"]
        group = row["group"] if len(groups) > 1 and row["group"] != last else ""
        last = row["group"]
        span = f"{row['least']:.2f}-{row['most']:.2f}"
        ratio = f"[bold]{row['median']:.2f}x[/bold]"
        shown.add_row(group, ratio, span, str(row["pairs"]), labels[upper], labels[lower])
    return shown


def rate_table(report: Mapping[str, Any]) -> Table:
    """Return tokens/s of everyone, and what else a run says of them."""
    shown = Table(box=SIMPLE, title="tokens/s of all sessions, prefill included")
    for column in ("", "set-up", "tokens/s", "first token ms", "tokens/pass", "same text", "idle CPU"):
        shown.add_column(column, justify="left" if column in {"", "set-up"} else "right")
    last = None
    for row in report["rates"]:
        group = row["group"] if row["group"] != last else ""
        last = row["group"]
        shown.add_row(
            group,
            report["labels"][row["set_up"]],
            f"{row['tokens_per_s']:.1f}",
            f"{row['first_token_ms']:.0f}",
            "" if row["tokens_per_pass"] is None else f"{row['tokens_per_pass']:.2f}",
            f"{row['same_text']} of {row['answers']}",
            "" if row["idle_services_cpu_share"] is None else f"{row['idle_services_cpu_share']:.1%}",
        )
    return shown


def category_table(report: Mapping[str, Any], over: tuple[str, str]) -> Table | None:
    """Return one pair's ratios by category, groups side by side; None for fewer than two categories."""
    rows = [row for row in report["categories"] if row["over"] == list(over)]
    if len({row["category"] for row in rows}) < 2:
        return None
    groups = list(dict.fromkeys(row["group"] for row in rows))
    labels = report["labels"]
    title = f"{labels[over[0]]} over {labels[over[1]]}, answer by answer"
    shown = Table(box=SIMPLE, title=title, min_width=len(title) + 4)
    shown.add_column("category")
    for group in groups:
        shown.add_column(group or "median", justify="right")
    for category in dict.fromkeys(row["category"] for row in rows):
        cells = {row["group"]: f"{row['median']:.2f}x" for row in rows if row["category"] == category}
        shown.add_row(category, *(cells.get(group, "") for group in groups))
    return shown
