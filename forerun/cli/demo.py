"""`forerun demo`: prompts plainly and with drafting, one with a seed, and a drafter killed in mid-answer."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from forerun.cli.client import Answer, Client
from forerun.cli.cores import share_out
from forerun.cli.flags import Target
from forerun.cli.foreground import answer_console, progress_console, run
from forerun.cli.launch import Child
from forerun.cli.origins import coloured, legend
from forerun.cli.progress import start_local
from forerun.cli.stack import Stack
from forerun.cli.summary import ratio
from forerun.core.types import Origin, Sampling
from forerun.engine.cores import usable_cores
from gateway.request import GenerationRequest

CODE = """Rename the class to Pile. Write the whole class.

```python
class Stack:
    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()
```"""
SUMMARY = """Summarize the notice in two sentences. Quote its exact words.

The lighthouse at Tarn Point will be closed to visitors from the first of March until the end of April. \
During these weeks the old copper roof will be taken down and replaced with a roof of slate from the quarry \
at Hollin. The path along the cliff stays open, but walkers are asked to keep their dogs on a lead, because \
the kittiwakes nest close to the steps."""
CHAT = "I have two free evenings a week and would like to learn to draw. How should I begin?"
PROMPTS = {"code": CODE, "summary": SUMMARY, "chat": CHAT}
SEED = 7
KILL_AFTER_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Row:
    """One prompt, answered plainly and with drafting."""

    title: str
    plain: Answer
    drafted: Answer

    @property
    def identical(self) -> bool:
        return self.plain.token_ids == self.drafted.token_ids and self.plain.text == self.drafted.text

    @property
    def num_accepted(self) -> int:
        return self.drafted.complete()[1].speculation.num_accepted


def demo(
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens an answer.")] = 128,
    model: Target = "smollm2",
) -> None:
    """Show that drafting changes how fast an answer comes, not what it says; ends by itself."""
    console = answer_console()
    rows = run(_demo(console, max_tokens, model))
    console.print(_table(rows))
    failures = [fault for row in rows for fault in faults(row)]
    for fault in failures:
        console.print(fault, style="bold red", markup=False)
    if not failures:
        console.print(
            "Every row is identical with and without drafting. Nothing is left running.", style="bold green"
        )
    raise typer.Exit(1 if failures else 0)


def faults(row: Row) -> list[str]:
    """Return what is wrong with a row; nothing is the promise."""
    found = []
    if not row.identical:
        found.append(f"{row.title}: the text with drafting differs from the plain text")
    if row.num_accepted == 0:
        found.append(f"{row.title}: no drafted token was accepted")
    return found


async def _demo(console: Console, max_tokens: int, model: str) -> list[Row]:
    shares = share_out(usable_cores(), verifiers=1, sources=["ngram"])
    rows: list[Row] = []
    async with Stack(model=model, shares=shares) as stack:
        gateway = await start_local(stack, ["ngram"], progress_console())
        console.print(
            "A store, a verifier, a look-up drafter and a gateway are running as processes of their own."
        )
        console.print(legend())
        async with Client(gateway.address) as client:
            for title, text in PROMPTS.items():
                request = GenerationRequest(messages=(("user", text),), max_tokens=max_tokens)
                rows.append(await _pair(console, client, title, request))
            seeded = GenerationRequest(
                messages=(("user", CODE),),
                max_tokens=max_tokens,
                sampling=Sampling(temperature=1.0),
                seed=SEED,
            )
            rows.append(await _pair(console, client, f"code, seed {SEED}", seeded))
            request = GenerationRequest(messages=(("user", CODE),), max_tokens=max_tokens)
            (drafter,) = stack.by_role("drafter")
            rows.append(await _killed(console, client, rows[0].plain, request, drafter.child))
    return rows


async def _pair(console: Console, client: Client, title: str, request: GenerationRequest) -> Row:
    console.rule(f"{title}, temperature {request.sampling.temperature:g}")
    with progress_console().status(f"{title}: plain"):
        plain = await client.answer(replace(request, no_draft=True))
    with progress_console().status(f"{title}: with drafting"):
        drafted = await client.answer(request)
    await _show(console, client, drafted)
    return Row(title, plain, drafted)


async def _killed(
    console: Console, client: Client, plain: Answer, request: GenerationRequest, drafter: Child
) -> Row:
    title = "code, killed"
    console.rule("code, the drafter killed in mid-answer")
    answer = Answer()
    killed_at = 0
    async for event in client.generate(request):
        answer.take(event)
        if not killed_at and len(answer.token_ids) >= KILL_AFTER_TOKENS and Origin.DRAFTED in answer.origins:
            drafter.send(signal.SIGKILL)
            await drafter.wait()
            killed_at = len(answer.token_ids)
    await _show(console, client, answer)
    if killed_at:
        console.print(
            f"The drafter was killed with SIGKILL after token {killed_at}; the answer went on without it."
        )
    return Row(title if killed_at else f"{title} (it ended before)", plain, answer)


async def _show(console: Console, client: Client, answer: Answer) -> None:
    opened, _ = answer.complete()
    console.print(coloured(await client.session(opened.session_id, passes=True)), soft_wrap=True)


def _table(rows: list[Row]) -> Table:
    table = Table(
        box=SIMPLE, title="plain / with drafting; tokens/s after the first token", padding=(0, 0, 0, 1)
    )
    table.add_column("prompt", no_wrap=True)
    for column in ("tokens", "passes", "per pass", "acceptance", "tokens/s", "identical"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        (_, plain), (_, drafted) = row.plain.complete(), row.drafted.complete()
        said = drafted.speculation
        table.add_row(
            row.title,
            str(drafted.usage.completion_tokens),
            f"{plain.speculation.passes} / {said.passes}",
            _number(ratio(drafted.usage.completion_tokens, said.passes), 2),
            _number(ratio(said.num_accepted, said.num_tested), 2),
            f"{_number(_speed(row.plain), 1)} / {_number(_speed(row.drafted), 1)}",
            "[green]yes[/]" if row.identical else "[bold red]NO[/]",
        )
    return table


def _speed(answer: Answer) -> float | None:
    """Tokens a second after the first one, as the gateway timed them."""
    _, finished = answer.complete()
    timings = finished.timings
    return ratio(finished.usage.completion_tokens - 1, (timings.total_ms - timings.first_token_ms) / 1000)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
