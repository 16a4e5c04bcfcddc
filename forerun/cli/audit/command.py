"""`forerun audit`: does drafting change the text? Token for token, over real services."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from forerun.cli.audit.compare import Difference, Outcome
from forerun.cli.audit.drafters import NO_DRAFTER
from forerun.cli.audit.run import AuditSettings, Findings, run_audit
from forerun.cli.bench.flags import OWN_PROMPTS
from forerun.cli.flags import Dtype, Target
from forerun.cli.foreground import answer_console, progress_console, run
from forerun.cli.prompts import read_prompts

COLUMNS = ("drafter", "agree", "tokens", "passes", "per pass", "accepted", "corrected", "bonus", "salvaged")


def audit(
    *,
    prompts: Annotated[
        Path, typer.Option(help="JSON lines with turns; the first turn of each is asked.")
    ] = OWN_PROMPTS,
    sessions: Annotated[int, typer.Option(min=1, max=256, help="Answers under way at a time.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Ask only the first prompts.")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens an answer.")] = 64,
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="lookup, ngram, random, target, replay, none, or any drafter source; repeatable."),
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="Above 0 a seed is needed.")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of every answer.")] = None,
    model: Target = "smollm2",
    dtype: Dtype = "bfloat16",
    fp32: Annotated[bool, typer.Option("--fp32", help="The same as --dtype float32.")] = False,
    window: Annotated[
        int | None, typer.Option(min=1, help="Undecided tokens in flight; few make for many bonus tokens.")
    ] = None,
    pool_mib: Annotated[
        int | None, typer.Option(min=1, help="KV pool of the verifier; a small one sets sessions back.")
    ] = None,
    lose_verifier: Annotated[
        bool, typer.Option("--lose-verifier", help="Kill the verifier half-way; a second one goes on.")
    ] = False,
    reference: Annotated[
        Path | None, typer.Option(help="File that keeps the plain answers for the next audit.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Answer every prompt plainly and with each drafter; exit 0 only if all texts agree.

    Drafters: `lookup` is the verifier's own look-up, `ngram` a drafter's, `random` is an untrained model of
    the target's vocabulary, `target` the target itself, `replay` drafts the right text with 20 % errors and
    random delays (`replay?error=0.1&delay_ms=30&seed=1`
    sets them), `none` repeats the plain run.
    """
    if temperature > 0 and seed is None:
        raise typer.BadParameter(
            "texts can be compared only if they can be repeated: give --seed with --temperature"
        )
    settings = AuditSettings(
        prompts=tuple(read_prompts(prompts, limit)),
        drafters=tuple(drafter or ["ngram"]),
        sessions=sessions,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        model=model,
        dtype="float32" if fp32 else dtype,
        window=window,
        pool_mib=pool_mib,
        lose_verifier=lose_verifier,
        reference=reference,
    )
    findings = run(run_audit(settings, progress_console()))
    if as_json:
        print(
            json.dumps({"passed": passed(findings), "drafters": [_as_dict(one) for one in findings.outcomes]})
        )
    else:
        _show(findings, answer_console())
    raise typer.Exit(0 if passed(findings) else 1)


def passed(findings: Findings) -> bool:
    """Return whether all texts agree."""
    return not any(one.differences for one in findings.outcomes)


def _as_dict(outcome: Outcome) -> dict[str, object]:
    return {**asdict(outcome), "agreements": outcome.agreements}


def _show(findings: Findings, console: Console) -> None:
    table = Table(box=SIMPLE, padding=(0, 0, 0, 1))
    for column in COLUMNS:
        table.add_column(column, no_wrap=True, justify="left" if column == "drafter" else "right")
    for outcome in findings.outcomes:
        counts = outcome.counts
        per_pass = f"{counts.tokens / counts.passes:.2f}" if counts.passes else "-"
        cells = (counts.accepted, counts.corrected, counts.bonus, counts.salvaged)
        agree = f"{outcome.agreements} of {outcome.prompts}"
        table.add_row(
            outcome.drafter, agree, str(counts.tokens), str(counts.passes), per_pass, *map(str, cells)
        )
    console.print(table)
    for outcome in findings.outcomes:
        if outcome.differences:
            console.print(
                f"{outcome.drafter}: {_sentence(outcome.differences[0], findings.texts)}", markup=False
            )
        elif not outcome.counts.tested and outcome.drafter != NO_DRAFTER:
            console.print(
                f"{outcome.drafter}: no drafted token was tested, so nothing was shown", markup=False
            )
        if outcome.inexact:
            console.print(f"{outcome.drafter}: {outcome.inexact} answers are exact: numeric", markup=False)


def _sentence(difference: Difference, texts: dict[int, str]) -> str:
    def said(token: int | None) -> str:
        return "the end" if token is None else f"{texts.get(token, '')!r} ({token})"

    before = "".join(texts.get(token, "") for token in difference.before)
    return (
        f"prompt {difference.prompt_id} differs first at token {difference.position}, after {before!r}: "
        f"plain {said(difference.plain)}, drafted {said(difference.drafted)}"
    )
