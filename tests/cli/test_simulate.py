"""What the simulation of a cluster says where drafting saves nothing."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "simulate.py"


@pytest.fixture(scope="module")
def simulate():
    spec = importlib.util.spec_from_file_location("benchmarks_simulate", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cell(preset: str, gain: float) -> dict:
    return {
        "preset": preset, "acceptance": 0.6, "sessions": 64, "round_trip_ms": 2.0, "drafters": 1, "gain": gain,
        "drafters_in_all": 1000, "plain_verifiers_worth": round(1000 * (gain - 1)),
    }  # fmt: skip


def reported(simulate, capsys, cluster) -> str:
    simulate.report([cell("7b-gpu", 1.0)], [], cluster, Path("out"))
    return capsys.readouterr().out


def test_a_preset_that_saves_no_verifier_is_a_line_that_says_why(simulate, capsys):
    out = reported(simulate, capsys, [cell("smollm2-cpu", 1.0), cell("70b-gpu", 1.5)])
    table, _, rest = out.partition("smollm2-cpu: drafters save none of 1,000 verifiers")
    assert "1,000 verifiers, 64 sessions each" in table
    assert "smollm2-cpu" not in table
    assert rest.startswith(
        " with 64 sessions each: a guess adds 2.9 ms to a pass, a plain token takes 0.6 ms"
    )


def test_without_a_verifier_saved_there_is_no_table(simulate, capsys):
    out = reported(simulate, capsys, [cell("smollm2-cpu", 1.0)])
    assert "worth plain" not in out
    assert out.count("smollm2-cpu") == 1


def test_one_cell_of_many_that_saves_keeps_the_table(simulate, capsys):
    out = reported(simulate, capsys, [cell("smollm2-cpu", 1.0), cell("smollm2-cpu", 1.02)])
    assert "drafters save none" not in out
