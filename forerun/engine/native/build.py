"""Compiles the C kernels at first use and loads them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forerun.engine.cache_folder import arriving_whole, cache_folder

SOURCES = ("forward.c", "attention.h", "attention_amx.h", "linear.h", "team.h", "vector.h")
FLAGS = ("-O3", "-ffp-contract=off", "-fPIC", "-shared", "-std=gnu11", "-pthread", "-w")
# The machine's own instruction set, under the names compilers know it by; the last attempt is the baseline.
MACHINES = (("-march=native",), ("-mcpu=native",), ())


class KernelsUnavailableError(Exception):
    """There is no working C compiler here, or what it built does not load."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled kernels. `build`: equal strings compute equal bits."""

    library: ctypes.CDLL
    build: str


@cache
def load_kernels() -> Kernels:
    """Compile (once a machine; cached by source, compiler, flags and CPU) and load. Raises KernelsUnavailableError."""
    compiler = _compiler()
    reasons = []
    for machine in MACHINES:
        flags = (*FLAGS, *machine)
        build = _build_name(compiler, flags)
        path = cache_folder() / "kernels" / f"{build}.so"
        try:
            if not path.exists():
                _compile(compiler, flags, path)
            return Kernels(ctypes.CDLL(str(path)), build)
        except (OSError, subprocess.SubprocessError) as error:
            reasons.append(_reason(error))
    raise KernelsUnavailableError(f"{compiler} could not build the kernels: {reasons[0]}")


def _compiler() -> str:
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    for name in names:
        if name and (found := shutil.which(name)):
            return found
    raise KernelsUnavailableError("no C compiler (cc, gcc or clang) on the path")


def _compile(compiler: str, flags: tuple[str, ...], path: Path) -> None:
    source = Path(__file__).parent / SOURCES[0]
    with arriving_whole(path) as out:
        # The command is the compiler found on the path with fixed flags.
        command = [compiler, *flags, "-o", str(out), str(source), "-lm"]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)  # noqa: S603


def _build_name(compiler: str, flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update((Path(__file__).parent / name).read_bytes())
    told = subprocess.run([compiler, "--version"], capture_output=True, check=False, timeout=30)  # noqa: S603
    digest.update(told.stdout)
    digest.update(" ".join(flags).encode())
    digest.update(_cpu().encode())
    return digest.hexdigest()[:24]


def _cpu() -> str:
    """The processor's model and features, on which -march=native depends."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    kept = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU")
    return "\n".join(line for line in lines if line.startswith(kept))


def _reason(error: Exception) -> str:
    output = getattr(error, "stderr", None)
    return output.strip().splitlines()[0] if isinstance(output, str) and output.strip() else str(error)
