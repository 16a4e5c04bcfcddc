"""The folder in which `forerun up` keeps its sessions."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forerun.errors import AlreadyRunning, InvalidRequest

LOCK = "forerun.lock"  # stays behind: removing it would let a third process lock another file of that name


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Inside, the folder exists and is this process's alone; its absolute path.

    The lock is the kernel's: it ends with the process however that ends. Raises AlreadyRunning while another
    process has it, InvalidRequest for a folder that cannot be made or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("ab")
    except (FileExistsError, NotADirectoryError) as fault:
        raise _unusable(folder, "it is not a folder") from fault
    except OSError as fault:
        raise _unusable(folder, fault.strerror or str(fault)) from fault
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            raise AlreadyRunning(
                f"another `forerun up` keeps its sessions in {folder}: stop it, or choose another --data-dir"
            ) from fault
        except OSError as fault:
            raise _unusable(folder, fault.strerror or str(fault)) from fault
        yield folder.resolve()


def _unusable(folder: Path, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"cannot keep sessions in {folder}: {why}; choose another --data-dir", field="data-dir"
    )
