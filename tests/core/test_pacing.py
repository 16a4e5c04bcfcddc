"""Pacing never gives rows or time away, and learns who is worth them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.pacing import Outlook, Pacing
from forerun.core.pass_cost import BUSY, KNOTS, PassCost
from forerun.core.survival import VAIN_MESSAGES, VAIN_PASSES, Survival

NOTHING = Survival()


def learned(acceptance: float, *, tests: int = 60, length: int = 8, seed: int = 1) -> Survival:
    survival, rng = Survival(Survival()), random.Random(seed)
    for _ in range(tests):
        accepted = 0
        while accepted < length and rng.random() < acceptance:
            accepted += 1
        survival.observe(min(accepted + 1, length), accepted)
    return survival


def costed(first_us: float = 20_000.0, *, per_row_us: float = 1_000.0) -> Pacing:
    return knowing(lambda rows: first_us + per_row_us * rows)


def knowing(pass_us: Callable[[int], float]) -> Pacing:
    """A pacing that knows what passes take."""
    pacing, least_us = Pacing(), pass_us(2)
    pacing.cost.begin({rows: least_us + (pass_us(rows) - least_us) / BUSY for rows in KNOTS})
    pacing.cost.observe(2, least_us)
    return pacing


def stair_us(rows: int) -> float:
    """A pass on a machine that computes 16 rows at a time."""
    return 14_000.0 + 200.0 * rows + 3_500.0 * math.ceil(rows / 16)


def on_stairs() -> Pacing:
    return knowing(stair_us)


def test_survival_converges_to_the_acceptance_it_sees() -> None:
    assert learned(0.8, tests=400).at(0) == pytest.approx(0.8, abs=0.12)
    assert learned(0.05, tests=400).at(0) < 0.15


def test_a_session_starts_from_what_its_source_did_elsewhere() -> None:
    pacing = Pacing()
    first = pacing.survival("ngram")
    for _ in range(100):
        first.observe(1, 0)
    assert pacing.survival("ngram").at(0) < 0.06
    assert pacing.survival("model:x").at(0) == pytest.approx(0.5)


@given(st.integers(0, 20), st.integers(0, 20))
def test_reach_falls_with_depth(tested: int, accepted: int) -> None:
    survival = Survival()
    survival.observe(tested, min(accepted, tested))
    reach = survival.reach(24)
    assert all(0 < later < earlier < 1 for earlier, later in pairwise(reach))


def test_cost_is_learned_from_the_passes_made() -> None:
    cost = PassCost()
    assert cost.us(5) == 0
    for _ in range(60):
        for rows in (2, 5, 8, 16, 40):
            cost.observe(rows, 10_000 + 500 * rows)
    for rows in (2, 8, 16):
        assert cost.us(rows) == pytest.approx(10_000 + 500 * rows, rel=0.1)
    assert cost.us(1) == cost.us(2)


def test_cost_begins_as_it_was_measured_and_follows_the_pace_from_there() -> None:
    cost = PassCost()
    cost.begin({2: 1_000.0, 4: 1_900.0, 8: 1_100.0, 16: 2_000.0})
    assert not cost.known
    cost.observe(1, 3_000.0)  # the machine is three times slower now
    assert cost.us(4) == pytest.approx(3_450.0)  # it cannot have cost more than the one of 8 rows
    assert cost.us(8) == pytest.approx(3_450.0)
    assert cost.us(12) == pytest.approx(5_475.0)
    assert cost.us(16) < cost.us(32) < cost.us(512)


def test_a_machine_that_slows_down_makes_no_row_dearer() -> None:
    cost = PassCost()
    for _ in range(300):
        for rows in (32, 44):
            cost.observe(rows, 1_000 * rows)
    before = cost.us(44) / cost.us(32)
    for _ in range(20):  # plans are long while something else has half the machine
        cost.observe(44, 2 * 44_000)
    assert cost.us(44) > 1.8 * 44_000
    assert cost.us(44) / cost.us(32) == pytest.approx(before, rel=0.25)


@pytest.mark.parametrize("acceptance", [0.05, 0.2])
@pytest.mark.parametrize("num_sessions", [1, 8, 32])
def test_poor_drafts_cost_nothing_on_a_machine_whose_speed_wanders(
    num_sessions: int, acceptance: float
) -> None:
    rng, pacing, passes = random.Random(5), on_stairs(), 600
    survivals = [pacing.survival("ngram") for _ in range(num_sessions)]
    wander, taken_us, tokens = 0.0, 0.0, 0
    for _ in range(passes):
        wander = 0.98 * wander + 0.1 * rng.gauss(0, 1)
        offered = [Outlook(one, 6 if rng.random() < 0.35 else 0) for one in survivals]
        lengths = pacing.allot(offered, 0, 512)
        rows = num_sessions + sum(lengths)
        pass_us = stair_us(max(rows, 2))
        pacing.cost.observe(rows, pass_us * math.exp(wander + abs(rng.gauss(0, 0.2))))
        taken_us += pass_us
        for survival, length in zip(survivals, lengths, strict=True):
            accepted = 0
            while accepted < length and rng.random() < acceptance:
                accepted += 1
            if length:
                survival.observe(min(accepted + 1, length), accepted)
            tokens += accepted + 1
    plain_us = passes * stair_us(max(num_sessions, 2))
    assert tokens / taken_us > 0.99 * num_sessions * passes / plain_us


def test_the_padding_row_of_a_one_session_pass_is_always_used() -> None:
    assert costed().allot([Outlook(learned(0.02), 8)], 0, 512) == [1]


def test_hopeless_drafts_get_no_paid_row_and_good_ones_all_that_pay() -> None:
    pacing = costed()
    hopeless, good = learned(0.02), learned(0.95)
    lengths = pacing.allot([Outlook(hopeless, 8)] * 4 + [Outlook(good, 8)] * 4, 0, 512)
    assert lengths[:4] == [0] * 4
    assert min(lengths[4:]) >= 6


def test_rows_are_spent_less_freely_when_each_costs_more() -> None:
    outlooks = [Outlook(learned(0.6), 12)] * 8
    cheap = costed(per_row_us=100).allot(outlooks, 0, 512)
    dear = costed(per_row_us=15_000).allot(outlooks, 0, 512)
    assert sum(cheap) > sum(dear)


def test_waiting_prompts_come_before_all_but_the_surest_drafts() -> None:
    outlooks = [Outlook(learned(0.5), 8)] * 4
    pacing = costed()
    assert sum(pacing.allot(outlooks, 0, 512)) > 0
    assert sum(pacing.allot(outlooks, 64, 512)) == 0


def test_a_source_that_was_hopeless_elsewhere_has_a_short_try() -> None:
    pacing = Pacing()
    assert pacing.window(pacing.survival("replay"), 0, 32) == 32
    elsewhere = pacing.survival("replay")
    for _ in range(100):
        elsewhere.observe(1, 0)
    assert 0 < pacing.window(pacing.survival("replay"), 0, 32) < 32
    assert pacing.window(pacing.survival("replay"), 20, 32) == 0


def test_streams_are_tried_in_turns() -> None:
    pacing, hopeless = Pacing(), learned(0.0)
    streams = [pacing.first_pass() for _ in range(16)]
    for passed in range(200):
        let_in = [first for first in streams if pacing.window(hopeless, first + passed, 32)]
        assert len(let_in) == 1


def test_a_drafter_that_repeats_others_is_stopped_and_let_in_again_once_it_brings_something() -> None:
    pacing = Pacing()
    survival = pacing.survival("ngram")
    for _ in range(30):
        survival.brought(one=False)
    assert pacing.window(survival, 20, 32) == 0
    assert pacing.window(survival, 96, 32) > 0
    survival.brought(one=True)
    survival.brought(one=True)
    assert pacing.window(survival, 20, 32) == 32


def test_a_drafter_whose_tokens_never_come_to_be_tested_is_stopped_until_one_is() -> None:
    pacing = Pacing()
    survival = pacing.survival("model:slow")
    for _ in range(VAIN_MESSAGES):
        assert pacing.window(survival, 20, 32) == 32
        survival.sent()
        for _ in range(VAIN_PASSES // VAIN_MESSAGES):
            survival.passed_over()
    assert pacing.window(survival, 20, 32) == 0
    assert pacing.window(pacing.survival("model:slow"), 20, 32) == 0  # elsewhere too, but for its turn
    assert pacing.window(survival, 96, 32) > 0
    survival.observe(1, 0)
    assert pacing.window(survival, 20, 32) == pacing.window(pacing.survival("model:slow"), 20, 32) == 32


def test_a_drafter_that_says_nothing_is_not_stopped_for_it() -> None:
    pacing = Pacing()
    survival = pacing.survival("ngram")
    for _ in range(10 * VAIN_PASSES):
        survival.passed_over()
    assert pacing.window(survival, 20, 32) == 32


def test_of_many_sessions_none_is_stopped_because_all_have_just_sent() -> None:
    pacing = Pacing()
    sessions = [pacing.survival("model:good") for _ in range(64)]
    for _ in range(10):
        for survival in sessions:
            survival.sent()
            survival.passed_over()
        assert all(pacing.window(survival, 20, 32) == 32 for survival in sessions)
        for survival in sessions:
            survival.observe(2, 2)


@given(
    st.lists(st.tuples(st.floats(0.0, 0.99), st.integers(0, 16)), min_size=1, max_size=12),
    st.integers(0, 64),
    st.integers(12, 128),
)
def test_allotment_keeps_every_bound(offers: list[tuple[float, int]], other_rows: int, max_rows: int) -> None:
    outlooks = [Outlook(learned(acceptance, tests=20), available) for acceptance, available in offers]
    lengths = costed().allot(outlooks, other_rows, max_rows)
    assert all(0 <= length <= outlook.available for length, outlook in zip(lengths, outlooks, strict=True))
    assert sum(lengths) <= max(max_rows - other_rows - len(outlooks), 0)


def test_a_row_that_begins_a_stair_is_given_only_with_others_that_fill_it() -> None:
    pacing, good = on_stairs(), learned(0.7)
    assert pacing.allot([Outlook(NOTHING, 0)] * 30 + [Outlook(good, 1)] * 2, 0, 512)[30:] == [0, 0]
    assert sum(pacing.allot([Outlook(good, 1)] * 32, 0, 512)) == 32
    assert sum(pacing.allot([Outlook(NOTHING, 0)] * 28 + [Outlook(good, 1)], 0, 512)) == 1


@pytest.mark.parametrize("pacing", [costed(), on_stairs()], ids=["even", "stairs"])
def test_allotment_is_as_good_as_the_best_fixed_length(pacing: Pacing) -> None:
    for acceptance in (0.1, 0.4, 0.7, 0.95):
        for num_sessions in (1, 4, 16):
            survival = learned(acceptance)
            outlooks = [Outlook(survival, 12)] * num_sessions
            chosen = _rate(pacing, outlooks, pacing.allot(outlooks, 0, 512))
            for length in range(13):
                assert chosen >= 0.95 * _rate(pacing, outlooks, [length] * num_sessions)


def _rate(pacing: Pacing, outlooks: list[Outlook], lengths: list[int]) -> float:
    tokens = sum(1 + sum(o.survival.reach(n)) for o, n in zip(outlooks, lengths, strict=True))
    return tokens / pacing.cost.us(len(outlooks) + sum(lengths))


def test_nothing_is_waited_for_when_nobody_owes_or_nothing_is_known() -> None:
    assert costed().wait_us([Outlook(learned(0.9), 0)]) == 0
    assert Pacing().wait_us([Outlook(learned(0.9), 0, 1_000.0)]) == 0


def test_a_good_drafter_that_answers_fast_is_waited_for_and_a_slow_or_bad_one_is_not() -> None:
    pacing = costed()
    good, bad = learned(0.9), learned(0.03)
    assert pacing.wait_us([Outlook(good, 0, 1_000.0)]) > 1_000
    assert pacing.wait_us([Outlook(bad, 0, 3_000.0)]) == 0
    assert pacing.wait_us([Outlook(good, 0, 500_000.0)]) == 0


def test_a_drafter_that_mostly_has_nothing_to_say_is_not_waited_for() -> None:
    assert costed().wait_us([Outlook(learned(0.5), 0, 4_000.0, answers=0.05)]) == 0


def test_many_ready_sessions_are_not_held_up_for_one() -> None:
    pacing = costed()
    ready = [Outlook(learned(0.9), 6)] * 15
    assert pacing.wait_us([*ready, Outlook(learned(0.9), 0, 10_000.0)]) == 0


def test_a_hopeless_drafter_is_stopped_and_tried_again() -> None:
    pacing, hopeless = Pacing(), learned(0.0)
    windows = [pacing.window(hopeless, passes, 32) for passes in range(480)]
    assert windows.count(0) > 400
    tries = [len(list(run)) for window, run in groupby(windows) if window]
    assert len(tries) == 5
    assert min(tries) > 3
    assert pacing.window(learned(0.5), 7, 32) == 32


def test_a_drafter_whose_tokens_would_get_no_row_is_stopped_until_they_would() -> None:
    pacing, fair, good = costed(), learned(0.6), learned(0.95)
    assert [pacing.window(fair, 50, 32, sessions) for sessions in (1, 8, 32)] == [32, 32, 0]
    assert pacing.window(good, 50, 32, 32) == 32
    assert pacing.window(fair, 0, 32, 32) > 0  # in its turn


def test_a_new_drafter_is_given_its_chance() -> None:
    fresh = Pacing().survival("ngram")
    assert Pacing().window(fresh, 0, 32) == 32
    assert Pacing().burst_length(fresh) >= 1
