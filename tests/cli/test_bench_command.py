"""A wrong flag of a bench costs one line and starts nothing."""

import pytest

from forerun.cli import stack
from forerun.cli.main import main


@pytest.fixture
def refused(monkeypatch, capsys):
    """Run a bench that must be refused before any process starts; return what it said."""

    def no_process(*arguments, **options):
        raise AssertionError("a process was about to start")

    monkeypatch.setattr(stack.Stack, "add_store", no_process)

    def call(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["forerun", "bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code not in (0, None)
        assert said.out == ""
        assert "Traceback" not in said.err
        return said.err

    return call


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["load", "--sessions", "0"], "--sessions takes numbers from 1"),
        (["load", "--sessions", "8,many"], "--sessions takes numbers"),
        (["load", "--sessions", "1.5"], "--sessions takes whole numbers"),
        (["load", "--setup", "vllm"], "no set-up vllm here; there are plain"),
        (["load", "--category", "poems"], "no prompt has category poems"),
        (["load", "--setup", "model"], "no set-up model here"),
        (["latency", "--round-trips-ms", "-5"], "--round-trips-ms takes numbers"),
        (["latency", "--round-trips-ms", "nan"], "--round-trips-ms takes numbers"),
        (["latency", "--setup", "transformers"], "no set-up transformers here"),
        (["worst", "--case", "rain"], "no case rain; there are random drafts"),
        (["single", "--prompts", "/nowhere/prompts.jsonl"], "cannot read /nowhere/prompts.jsonl"),
        (["single", "--out", "/proc/nowhere"], "cannot write to /proc/nowhere"),
    ],
)
def test_what_means_nothing_is_refused_in_one_line(refused, flags, message):
    said = refused(*flags)
    assert said.startswith("forerun: ")
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["single", "--repeat", "0"], "--repeat"),
        (["single", "--max-tokens", "1"], "--max-tokens"),
        (["load", "--waves", "1"], "--waves"),
        (["worst", "--sessions", "many"], "--sessions"),
        (["single", "--round-trip-ms", "-1"], "--round-trip-ms"),
    ],
)
def test_a_number_out_of_range_names_its_flag(refused, flags, named):
    assert named in refused(*flags)


def test_the_older_names_of_flags_still_work(refused):
    assert "no set-up vllm" in refused("single", "--rounds", "2", "--results", "x", "--setup", "vllm")
