"""The folder for what is computed once: converted models, compiled kernels, probe results."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """`$FORERUN_CACHE`, else ~/.cache/forerun; it exists afterwards."""
    folder = Path(os.environ.get("FORERUN_CACHE") or Path.home() / ".cache" / "forerun")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def arriving_whole(target: Path) -> Iterator[Path]:
    """Yield a scratch path; what lies there when the block ends becomes `target` in one step.

    Processes that race for one target each build their own; the first to finish wins and the others' work is
    dropped. If the block raises, nothing is left behind.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        arriving = scratch / target.name
        yield arriving
        try:
            arriving.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
