"""`make gpu-check`'s script runs to its end without a GPU where it is told to, and says so where it is not."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def gpu_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu_check", *arguments],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_gpu_it_says_so_in_one_line_and_fails(tmp_path: Path) -> None:
    ran = gpu_check("--out", str(tmp_path / "out"))
    assert ran.returncode == 1
    assert ran.stdout.startswith("gpu-check: no GPU answers here; nothing was run")
    assert ran.stdout.count("\n") == 1
    assert not ran.stderr
    assert not (tmp_path / "out").exists()


def test_on_cpus_every_part_is_in_the_report_and_every_text_is_the_targets(tmp_path: Path) -> None:
    ran = gpu_check("--device", "cpu", "--size", "tiny", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    (path,) = tmp_path.glob("gpu-check-*.json")
    report = json.loads(path.read_text())
    assert report["machine"]["device"] == "cpu"
    for model in ("target", "drafter"):
        assert 64 in report[model]["buckets"]
        costs = report[f"{model}_pass_ms"]
        assert set(costs["rows"]) == {"1", "2", "5", "8", "16", "40", "64", "128"}
        assert all(ms > 0 for row in costs["rows"].values() for ms in row.values())
    rates: dict[float, list[float]] = {}
    for sessions in (1, 3):
        part = report[f"speculation_{sessions}"]
        assert part["complete"]
        for cell in part["cells"]:
            for name in ("plain", "drafted_elsewhere", "drafted_here"):
                assert cell[name]["equal"] == cell[name]["answers"] == sessions
            assert cell["plain"]["tokens_a_pass"] == 1.0
            rates.setdefault(cell["accuracy"], []).append(cell["drafted_here"]["tokens_a_pass"])
    assert rates[0.0] == [1.0, 1.0]
    assert min(rates[0.95]) > 1.5
