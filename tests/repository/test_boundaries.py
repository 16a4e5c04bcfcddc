"""The import contracts are drawn so that a wrong import breaks one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("forerun", "gateway", "verifier_service", "drafter_service")

WRONG = [
    ("forerun/core/types.py", "import asyncio", "core does no I/O"),
    ("forerun/errors.py", "import grpc", "core does no I/O"),
    ("forerun/core/limits.py", "import forerun.wire.convert", "services over engine and wire over core"),
    ("forerun/wire/convert.py", "import forerun.engine.interface", "services over engine and wire over core"),
    ("forerun/wire/convert.py", "import torch", "the gateway never imports torch"),
    ("gateway/request.py", "import forerun.engine.interface", "the gateway never imports torch"),
    ("gateway/request.py", "import verifier_service", "services over engine and wire over core"),
    ("verifier_service/session.py", "import redis", "model services never import redis"),
    ("drafter_service/__init__.py", "import redis", "model services never import redis"),
    ("verifier_service/session.py", "import forerun.cli", "the command line is nobody's library"),
    (
        "forerun/engine/interface.py",
        "import forerun.v1.model_pb2",
        "core, engine and requests speak core types",
    ),
    ("gateway/text.py", "import forerun.v1.model_pb2", "core, engine and requests speak core types"),
]


@pytest.mark.parametrize(("path", "line", "contract"), WRONG, ids=[f"{w[0]}: {w[1]}" for w in WRONG])
def test_a_wrong_import_breaks_its_contract(tmp_path: Path, path: str, line: str, contract: str) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    file = tmp_path / path
    file.write_text(file.read_text() + f"\n{line}\n")
    program = str(Path(sys.executable).with_name("lint-imports"))
    run = subprocess.run([program, "--no-cache"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    assert f"{contract} BROKEN" in run.stdout
