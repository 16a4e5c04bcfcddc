"""Every check lets the edges of its range through and names the field of what it refuses."""

import math

import pytest

from forerun.core import limits
from forerun.core.types import Sampling
from forerun.errors import InvalidRequest

HUGE = 10**400  # no float holds it


def refused_field(check, *args) -> str:
    with pytest.raises(InvalidRequest) as caught:
        check(*args)
    assert caught.value.message
    assert caught.value.reason.isupper()
    return caught.value.field


@pytest.mark.parametrize(
    "s",
    [
        Sampling(),
        Sampling(limits.MAX_TEMPERATURE, limits.MAX_TOP_K, 1.0, 1.0),
        Sampling(5e-324, 1, 5e-324, 0.0),
        Sampling(1, 0, 1, 0),
    ],
)
def test_sampling_within_its_ranges_is_accepted(s):
    limits.check_sampling(s)


@pytest.mark.parametrize(
    "wrong", [-0.1, -5e-324, 100.0001, math.nan, math.inf, -math.inf, HUGE, -HUGE, "1", None]
)
def test_absurd_temperature_is_refused(wrong):
    assert refused_field(limits.check_sampling, Sampling(temperature=wrong)) == "sampling.temperature"


@pytest.mark.parametrize("wrong", [-1, 2**31, HUGE, 1.0, math.nan, True, "5", None])
def test_top_k_that_is_no_count_is_refused(wrong):
    assert refused_field(limits.check_sampling, Sampling(top_k=wrong)) == "sampling.top_k"


@pytest.mark.parametrize("wrong", [0, 0.0, -0.5, 1.0000001, math.nan, math.inf, HUGE, True, "1"])
def test_top_p_outside_0_to_1_is_refused(wrong):
    assert refused_field(limits.check_sampling, Sampling(top_p=wrong)) == "sampling.top_p"


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan, math.inf, -HUGE, None])
def test_min_p_outside_0_to_1_is_refused(wrong):
    assert refused_field(limits.check_sampling, Sampling(min_p=wrong)) == "sampling.min_p"


def test_seeds_are_64_bit():
    limits.check_seed(None)
    limits.check_seed(0)
    limits.check_seed(2**64 - 1)
    for wrong in (-1, 2**64, HUGE, 1.5, True):
        assert refused_field(limits.check_seed, wrong) == "seed"


def test_token_ids_of_the_vocabulary_are_accepted():
    limits.check_token_ids([0, 9], 10, "token_ids")


@pytest.mark.parametrize("wrong", [[], [10], [-1], [3, 2**63], [HUGE], [0, "a"], [None], [[1], [2, 3]]])
def test_token_ids_outside_the_vocabulary_are_refused(wrong):
    assert refused_field(limits.check_token_ids, wrong, 10, "token_ids") == "token_ids"


def test_the_wrong_token_id_is_named():
    with pytest.raises(InvalidRequest, match="token id 12 "):
        limits.check_token_ids([3, 12, 99], 10, "prompt")


def test_lengths_that_fill_the_context_are_accepted():
    limits.check_lengths(6, 4, 10)
    limits.check_lengths(1, 1, 2)


@pytest.mark.parametrize(
    ("lengths", "field"),
    [
        ((0, 1, 10), "prompt"),
        ((10, 1, 10), "prompt"),
        ((99, 1, 10), "prompt"),
        ((6, 5, 10), "max_tokens"),
        ((6, 0, 10), "max_tokens"),
        ((6, -1, 10), "max_tokens"),
        ((6, HUGE, 10), "max_tokens"),
        ((6, math.nan, 10), "max_tokens"),
        ((6, 1.0, 10), "max_tokens"),
    ],
)
def test_lengths_that_do_not_fit_name_the_field_at_fault(lengths, field):
    assert refused_field(limits.check_lengths, *lengths) == field


def test_sixteen_stop_strings_are_accepted():
    limits.check_stop(())
    limits.check_stop(["\n"] * 16)
    limits.check_stop(["x" * limits.MAX_STOP_CHARS])


@pytest.mark.parametrize("wrong", [["x"] * 17, [""], ["ok", ""], ["x" * 1025], "stop", [b"x"], [3]])
def test_stop_lists_out_of_bounds_are_refused(wrong):
    assert refused_field(limits.check_stop, wrong) == "stop"


@pytest.mark.parametrize("check", [limits.check_session_id, limits.check_request_id])
class TestIds:
    @pytest.mark.parametrize(
        "good", ["a", "0", "A-b_c.d:e", "x" * 128, "0193f2c8-77aa-7bbb-8ccc-0123456789ab"]
    )
    def test_plain_ids_are_accepted(self, check, good):
        check(good)

    @pytest.mark.parametrize(
        "bad", ["", "x" * 129, "{a}", "a b", "a\n", "a\x00", "é", "-a", ".a", "a/b", "a*", None, 7, b"a"]
    )
    def test_ids_that_could_mean_something_to_a_store_are_refused(self, check, bad):
        assert refused_field(check, bad) in {"session_id", "request_id"}
