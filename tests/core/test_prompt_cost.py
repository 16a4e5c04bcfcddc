"""A long prompt never holds the tokens of others up for more than three passes, and is not starved itself."""

import random

import pytest

from forerun.core.prompt_cost import LEAST_ROWS, PromptCost

MOST = 64
PLAIN_US = 20_000.0


def feed(cost: PromptCost, row: float, depth: float, *, start: int, end: int, noise: float) -> list[float]:
    """Times of the passes that feed a prompt, in plain passes; a row adds `row`, a position it attends to `depth`."""
    rng, at, passes = random.Random(1), start, []
    while at < end:
        rows = min(cost.rows_beside(PLAIN_US, [at], MOST), end - at)
        added = rows * (row + depth * (at + rows / 2)) * PLAIN_US * rng.uniform(1 - noise, 1 + noise)
        cost.observe([(rows, at)], added, PLAIN_US)
        passes.append(1 + added / PLAIN_US)
        at += rows
    return passes


# A row of products and a position attended to, in plain passes: SmolLM2 on two cores, a model with cheap attention,
# one of which a row costs a tenth of a pass.
@pytest.mark.parametrize(("row", "depth"), [(0.0125, 1.7e-5), (0.02, 2e-6), (0.1, 1e-5)])
def test_the_longest_pass_beside_a_long_prompt_is_three_plain_ones(row: float, depth: float) -> None:
    cost = PromptCost()
    feed(cost, row, depth, start=0, end=200, noise=0.2)  # an earlier prompt, short as most are
    passes = feed(cost, row, depth, start=0, end=4000, noise=0.2)
    assert max(passes) <= 3.0
    assert sum(passes) / len(passes) > 1.35  # the room is used


def test_the_first_prompt_of_all_is_held_within_bounds_by_the_prior() -> None:
    assert max(feed(PromptCost(), 0.0125, 1.7e-5, start=0, end=4000, noise=0.2)) <= 3.0


def test_a_prompt_that_begins_deep_is_fed_in_small_pieces_from_the_start() -> None:
    cost = PromptCost()
    feed(cost, 0.0125, 1.7e-5, start=0, end=4000, noise=0.2)
    assert max(feed(cost, 0.0125, 1.7e-5, start=3800, end=4000, noise=0.0)) <= 3.0


def test_a_prompt_so_deep_that_no_row_fits_goes_on() -> None:
    cost = PromptCost()
    feed(cost, 0.5, 1e-3, start=0, end=2000, noise=0.0)
    assert cost.rows_beside(PLAIN_US, [100_000], MOST) == LEAST_ROWS
    assert cost.rows_beside(PLAIN_US, [100_000], 2) == 2


def test_one_slow_pass_of_a_busy_machine_is_soon_forgotten() -> None:
    cost = PromptCost()
    feed(cost, 0.0125, 1e-6, start=0, end=4000, noise=0.0)
    before = cost.rows_beside(PLAIN_US, [0], MOST)
    cost.observe([(64, 0)], 100 * PLAIN_US, PLAIN_US)
    feed(cost, 0.0125, 1e-6, start=0, end=500, noise=0.0)
    assert cost.rows_beside(PLAIN_US, [0], MOST) >= before - 2


def test_before_any_pass_was_seen_a_prompt_gets_all_it_may() -> None:
    assert PromptCost().rows_beside(0.0, [0], MOST) == MOST
    assert PromptCost().rows_beside(PLAIN_US, [], MOST) == MOST
