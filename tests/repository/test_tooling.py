"""The targets people are told to use exist, and the run for CI fails when any part of it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TARGETS = ["help", "setup", "model", "proto", "fmt", "lint", "type", "arch", "test", "check", "demo", "bench"]

FAKE_MAKE = """#!/bin/bash
target="${@: -1}"
echo "$target" >> "$CALLS"
echo "$target" | grep -qxE "$FAILING" && exit 2
exit 0
"""


def hooks() -> list[str]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    return [hook["entry"].removeprefix("make ") for repo in config["repos"] for hook in repo["hooks"]]


@pytest.mark.parametrize("target", [*TARGETS, *hooks()])
def test_make_knows_the_target(target: str) -> None:
    run = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_help_lists_every_target_a_person_needs() -> None:
    run = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in run.stdout.splitlines()}
    assert {"setup", "model", "proto", "fmt", "test", "check", "demo", "bench"} <= listed


def test_hooks_run_all_that_check_runs() -> None:
    run = subprocess.run(
        ["make", "--print-data-base", "--dry-run", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("check:")]
    assert set(hooks()) == set(line.partition(":")[2].split())


def test_the_hooks_are_a_valid_configuration() -> None:
    program = Path(sys.executable).with_name("pre-commit")
    run = subprocess.run(
        [str(program), "validate-config", str(ROOT / ".pre-commit-config.yaml")],
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize(
    ("failing", "called", "succeeds"),
    [
        ("none", ["setup", "check", "test"], True),
        ("setup", ["setup"] * 3, False),
        ("check", ["setup", "check", "test"], False),
        ("test", ["setup", "check", "test"], False),
    ],
)
def test_ci_fails_with_whatever_fails_and_tests_in_any_case(
    tmp_path: Path, failing: str, called: list[str], succeeds: bool
) -> None:
    make = tmp_path / "make"
    make.write_text(FAKE_MAKE)
    make.chmod(0o755)
    calls = tmp_path / "calls"
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "CALLS": str(calls),
        "FAILING": failing,
    }
    run = subprocess.run(["bash", ".ci/run"], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert (run.returncode == 0) is succeeds
    assert calls.read_text().split() == called
