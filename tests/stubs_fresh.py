"""Compares the committed stubs in forerun/v1 with what protos/ generate now.

Exit 0: they are the same. Exit 1: the stale files are printed. With --write the stubs are generated in
place instead.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
STUBS = Path("forerun/v1")


def generate(target: Path) -> None:
    """The stubs of all of protos/ are in `target`/forerun/v1; raises RuntimeError when protoc fails."""
    protos = ROOT / "protos"
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    code = protoc.main(
        [
            "protoc",
            f"-I{protos}",
            f"-I{resources.files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *(str(path.relative_to(protos)) for path in sorted(protos.glob("forerun/v1/*.proto"))),
        ]
    )
    if code != 0:
        raise RuntimeError(f"protoc exited with {code}")


def stale(committed: Path, generated: Path) -> list[str]:
    """One line for each stub that is missing, left over or other than its .proto file says, by name."""
    have = {path.name: path.read_bytes() for path in committed.glob("*_pb2*.py*")}
    want = {path.name: path.read_bytes() for path in generated.glob("*_pb2*.py*")}
    return [
        f"{name}: {'missing' if name not in have else 'left over' if name not in want else 'stale'}"
        for name in sorted(have | want)
        if have.get(name) != want.get(name)
    ]


def main(arguments: list[str]) -> int:
    """The process's exit status."""
    if arguments == ["--write"]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        lines = stale(ROOT / STUBS, Path(folder) / STUBS)
    for line in lines:
        sys.stderr.write(f"{STUBS}/{line}\n")
    if lines:
        sys.stderr.write("run `make proto` and commit the result\n")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
