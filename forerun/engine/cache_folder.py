"""The folder for what is computed once: converted models, compiled kernels, probe results."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from forerun.errors import InvalidRequest

VARIABLE = "FORERUN_CACHE"


def cache_folder() -> Path:
    """`$FORERUN_CACHE`, else $XDG_CACHE_HOME/forerun, else ~/.cache/forerun; it exists afterwards.

    As its specification has it, an $XDG_CACHE_HOME that is not absolute does not count. Raises InvalidRequest for a
    folder that cannot be made.
    """
    return _made(_named())


@contextmanager
def arriving_whole(target: Path) -> Iterator[Path]:
    """Yield a scratch path; what lies there when the block ends becomes `target` in one step.

    Processes that race for one target each build their own; the first to finish wins and the others' work is
    dropped. If the block raises, nothing is left behind. Raises InvalidRequest where nothing can be written.
    """
    try:
        scratch = Path(tempfile.mkdtemp(prefix=_scratch_prefix(target), dir=_made(target.parent)))
    except OSError as fault:
        raise _unusable(target.parent, fault) from fault
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


@contextmanager
def alone_with(target: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Inside, no other process is here for the same target; what killed ones left of `arriving_whole` is gone.

    `waiting` is called once if another process has to be waited for. The lock is the kernel's: it ends with the
    process however that ends. Its file stays behind: removing it would let a third process lock another file of that
    name. Raises InvalidRequest where nothing can be written.
    """
    with ExitStack() as held:
        try:
            lock = held.enter_context((_made(target.parent) / f".{target.name}.lock").open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(lock, fcntl.LOCK_EX)
            left = [path for path in target.parent.iterdir() if path.name.startswith(_scratch_prefix(target))]
        except OSError as fault:
            raise _unusable(target.parent, fault) from fault
        for path in left:
            shutil.rmtree(path, ignore_errors=True)  # of a folder; the lock is a file
        yield


def _scratch_prefix(target: Path) -> str:
    return f".{target.name}."


def _named() -> Path:
    if told := os.environ.get(VARIABLE):
        return Path(told)
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if shared.is_absolute():
        return shared / "forerun"
    try:
        return Path.home() / ".cache" / "forerun"
    except RuntimeError as fault:
        raise InvalidRequest(
            f"there is no home to keep a cache in: name a folder in {VARIABLE}", reason="CACHE_UNUSABLE"
        ) from fault


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise _unusable(folder, fault) from fault
    return folder


def _unusable(folder: Path, fault: OSError) -> InvalidRequest:
    why = "it is not a folder" if isinstance(fault, FileExistsError) else fault.strerror or str(fault)
    return InvalidRequest(
        f"the cache cannot be kept in {folder}: {why}; name another folder in {VARIABLE}",
        reason="CACHE_UNUSABLE",
    )
