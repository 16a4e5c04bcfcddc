"""The simulated verifier reaches the closed forms where nothing takes time, and pays for what does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forerun.simulation.setting import MAX_ROWS, PRESETS, PassCurve, Setting
from forerun.simulation.world import simulate
from verifier_service import scheduler

FLAT = PassCurve(((MAX_ROWS, 20.0),))


def test_a_pass_is_as_large_here_as_in_the_verifier() -> None:
    assert MAX_ROWS == scheduler.MAX_ROWS


def test_a_pass_costs_its_knots_is_flat_before_them_and_goes_straight_on_after() -> None:
    curve = PassCurve(((2, 10.0), (4, 14.0), (8, 16.0)))
    assert [curve.ms(rows) for rows in (1, 2, 3, 4, 6, 8, 12)] == [10, 10, 12, 14, 15, 16, 18]
    assert curve.scaled(5.0).ms(4) == 7


@pytest.mark.parametrize("acceptance", [0.3, 0.6, 0.8, 0.9])
def test_without_latency_and_cost_the_gain_is_that_of_the_closed_form(acceptance: float) -> None:
    result = simulate(Setting(FLAT, acceptance=(acceptance,)), turns=2000)
    drafted = result.rows_per_session - 1  # k of the closed form, where rows are free
    expected = (1 - acceptance ** (drafted + 1)) / (1 - acceptance)
    assert result.gain == pytest.approx(result.tokens_per_pass, rel=0.001)
    assert result.tokens_per_pass == pytest.approx(expected, rel=0.06)
    assert result.acceptance_rate == pytest.approx(acceptance, abs=0.04)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("sessions", [1, 8, 64])
@pytest.mark.parametrize("round_trip_ms", [1.0, 30.0, 100.0])
def test_a_drafter_that_is_never_right_costs_at_most_two_percent(
    preset: str, sessions: int, round_trip_ms: float
) -> None:
    setting = Setting(PRESETS[preset], sessions, round_trip_ms, 0.5, (0.0,))
    assert simulate(setting, turns=600).gain >= 0.98


def test_a_good_drafter_some_passes_away_gains_because_it_drafts_ahead() -> None:
    far = Setting(PRESETS["70b-gpu"], 1, 80.0, 1.0, (0.95,))
    ahead = simulate(far, turns=600)
    assert ahead.gain > 1.5
    assert ahead.gain > 1.2 * simulate(replace(far, window=2), turns=600).gain


def test_what_costs_more_gains_less() -> None:
    near = Setting(PRESETS["70b-gpu"], 1, 1.0, 1.0, (0.8,))
    gain = simulate(near).gain
    assert gain > simulate(replace(near, round_trip_ms=30.0)).gain
    assert gain > simulate(replace(near, step_ms=8.0)).gain
    assert gain > simulate(replace(near, acceptance=(0.5,))).gain
    assert gain > simulate(replace(near, acceptance=(0.8, 0.8, 0.2))).gain


def test_sessions_beyond_a_drafters_load_share_it_and_another_drafter_helps() -> None:
    crowded = Setting(PRESETS["7b-gpu"], 64, 2.0, 1.0, (0.9,), carries=8)
    assert simulate(replace(crowded, drafters=8)).gain > 1.1 * simulate(crowded).gain


def test_where_every_row_is_taken_nothing_is_drafted() -> None:
    full = simulate(Setting(FLAT, MAX_ROWS, 0.0, 0.0, (0.9,)), turns=80, warm_up=40)
    assert (full.rows_per_session, full.tokens_per_pass) == (1, 1)


def test_a_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    setting = Setting(PRESETS["smollm2-cpu"], 12, 5.0, 1.0, (0.7,), seed=3)
    assert simulate(setting, 200) == simulate(setting, 200)
    assert simulate(setting, 200) != simulate(replace(setting, seed=4), 200)
