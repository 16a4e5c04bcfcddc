"""`forerun breakeven` answers from the simulation, and refuses what it cannot simulate."""

import json

import pytest

from forerun.cli.main import main

GIVEN = ["--round-trip-ms", "10", "--draft-step-ms", "2", "--acceptance", "0.8"]


@pytest.fixture
def forerun(monkeypatch, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["forerun", "breakeven", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return call


def test_it_says_the_gain_what_would_raise_it_and_where_it_ends(forerun):
    status, out, _ = forerun(*GIVEN, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["gain"] > 1.2
    assert found["tokens_per_s"] == pytest.approx(found["gain"] * found["plain_tokens_per_s"], rel=0.01)
    gains = list(found["gain_with"].values())
    assert gains == sorted(gains, reverse=True)
    assert found["gain_with"]["half the round trip"] > found["gain"]
    # One session has no use for a second drafter.
    assert "twice the drafters" not in found["gain_with"]
    assert min(gains) > 1.03 * found["gain"]
    assert 0 < found["least_acceptance"] < 0.8
    assert found["longest_round_trip_ms"] > 10


def test_a_drafter_far_too_slow_pays_nowhere_and_the_pass_given_replaces_the_presets(forerun):
    far_too_slow = ["--round-trip-ms", "10", "--draft-step-ms", "9000", "--acceptance", "0.5"]
    status, out, _ = forerun(*far_too_slow, "--pass-ms", "100", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["plain_tokens_per_s"] == 10
    assert (found["least_acceptance"], found["longest_round_trip_ms"]) == (None, None)


def test_a_change_within_the_texts_own_spread_is_not_told(forerun):
    # The drafter is exact and a pass costs far more than all else: nothing helps.
    status, out, _ = forerun(
        "--round-trip-ms", "0", "--draft-step-ms", "0", "--acceptance", "1", "--pass-ms", "1000"
    )
    assert status == 0
    assert "No change looked at gives 3% more." in out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--acceptance", "1.5"], "--acceptance"),
        (["--acceptance", "nan"], "for '--acceptance': must be a number"),
        (["--round-trip-ms", "-1"], "--round-trip-ms"),
        (["--round-trip-ms", "nan"], "for '--round-trip-ms': must be a number"),
        (["--draft-step-ms", "soon"], "for '--draft-step-ms': must be a number"),
        (["--draft-step-ms", "inf"], "for '--draft-step-ms': must be between 0 and 10000"),
        (["--sessions", "0"], "--sessions"),
        (["--sessions", "513"], "--sessions"),
        (["--pass-ms", "0"], "--pass-ms"),
        (["--pass-ms", "nan"], "for '--pass-ms': must be a number"),
        (["--preset", "abacus"], "smollm2-cpu, 70b-gpu, 7b-gpu"),
    ],
)
def test_a_wrong_flag_is_one_error(forerun, flags, message):
    status, out, err = forerun(*GIVEN, *flags)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
