"""Laws against a reference that sorts everything and follows the definition word by word."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.sampling import argmax, kept, law, truncate
from forerun.core.types import Law, Sampling
from forerun.errors import InternalFault

# Few distinct values: ties everywhere, as in bf16. Padded positions are -inf.
values = st.sampled_from([-math.inf, -30.0, -1.5, -0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 8.0])
logit_rows = st.lists(values, min_size=1, max_size=40).filter(lambda row: max(row) > -math.inf)
settings_of_a_law = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-6, 0.3, 1.0, 1.7, 100.0]),
    top_k=st.sampled_from([0, 1, 2, 3, 7, 1000]),
    top_p=st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-9]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def f32(row) -> np.ndarray:
    return np.array(row, dtype=np.float32)


def reference_kept(logits, s: Sampling) -> list[int]:
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    if s.temperature == 0:
        return order[:1]
    highest = float(logits[order[0]])
    e = {i: math.exp((float(logits[i]) - highest) / s.temperature) for i in order}
    if s.top_k:
        order = order[: s.top_k]
    if s.top_p < 1:
        total, before, prefix = math.fsum(e[i] for i in order), 0.0, []
        for i in order:
            if before >= s.top_p * total:
                break
            prefix.append(i)
            before += e[i]
        order = prefix
    return [i for i in order if e[i] > 0 and e[i] >= s.min_p]


@given(logit_rows, settings_of_a_law)
def test_kept_follows_the_definition_ties_to_the_lower_id(row, s):
    assert kept(f32(row), s).tolist() == reference_kept(row, s)


@given(logit_rows, settings_of_a_law)
def test_law_is_the_softmax_over_what_is_kept(row, s):
    found = law(f32(row), s)
    ids = reference_kept(row, s)
    assert sorted(found.token_ids.tolist()) == sorted(ids)
    highest, t = max(row), s.temperature or 1.0
    e = {i: math.exp((row[i] - highest) / t) for i in ids}
    for i, p in zip(found.token_ids.tolist(), found.probs.tolist(), strict=True):
        assert p == pytest.approx(e[i] / math.fsum(e.values()), abs=1e-15)
    assert found.probs.dtype == np.float64
    assert found.token_ids.dtype == np.int64


@given(st.integers(0, 2**32 - 1), settings_of_a_law)
def test_a_large_vocabulary_gives_what_a_full_sort_gives(seed, s):
    # bf16-like values: 3000 tokens share a few hundred levels, so the borders of top-k and top-p lie in ties.
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=3000) * 3, 1).astype(np.float32)
    assert kept(logits, s).tolist() == reference_kept(logits.tolist(), s)


@pytest.mark.parametrize("top_k", [1, 2, 5])
def test_top_k_keeps_exactly_k_although_all_tie(top_k):
    assert kept(f32([1.0] * 9), Sampling(1.0, top_k)).tolist() == list(range(top_k))


def test_the_token_that_crosses_top_p_is_kept_and_none_after_it():
    logits = np.log(f32([0.5, 0.3, 0.2]))
    assert kept(logits, Sampling(1.0, top_p=0.6)).tolist() == [0, 1]
    assert kept(logits, Sampling(1.0, top_p=0.85)).tolist() == [0, 1, 2]
    assert kept(f32([0.0, 0.0, -math.inf]), Sampling(1.0, top_p=0.5)).tolist() == [0]


def test_top_p_counts_what_top_k_left():
    logits = np.log(f32([0.4, 0.3, 0.2, 0.1]))
    assert kept(logits, Sampling(1.0, top_k=2, top_p=0.5)).tolist() == [0]


def test_temperature_zero_is_one_hot_at_the_lower_of_tied_ids():
    one_hot = law(f32([1.0, 3.0, 3.0, -math.inf]), Sampling(0.0))
    assert (one_hot.token_ids.tolist(), one_hot.probs.tolist()) == ([1], [1.0])


def test_the_two_zeros_tie():
    logits = f32([-1.0, -0.0, 0.0])
    assert kept(logits, Sampling(1.0, top_k=1)).tolist() == [1]
    assert argmax(logits) == 1


def test_padded_logits_are_never_kept():
    padded = f32([0.0, -math.inf, 1.0, -math.inf])
    for s in (Sampling(100.0), Sampling(100.0, top_k=3), Sampling(100.0, top_p=0.999999)):
        assert sorted(kept(padded, s).tolist()) == [0, 2]


def test_the_smallest_temperature_neither_overflows_nor_loses_the_ties():
    tied = law(f32([5.0, -3.0, 5.0]), Sampling(5e-324))
    assert (tied.token_ids.tolist(), tied.probs.tolist()) == ([0, 2], [0.5, 0.5])


@pytest.mark.parametrize("row", [[math.nan, 1.0], [1.0, math.nan], [math.inf, 1.0], [-math.inf] * 3])
@pytest.mark.parametrize("s", [Sampling(), Sampling(1.0), Sampling(1.0, top_k=1, top_p=0.5)])
def test_logits_that_are_not_numbers_are_a_fault_not_a_law(row, s):
    with pytest.raises(InternalFault):
        law(f32(row), s)


@given(st.integers(0, 2**32 - 1), st.integers(1, 70))
def test_a_truncated_law_is_its_top_m_in_float32_values(seed, m):
    rng = np.random.default_rng(seed)
    full = law(np.round(rng.normal(size=60) * 2, 1).astype(np.float32), Sampling(1.0))
    cut = truncate(full, m)
    order = sorted(range(60), key=lambda i: (-full.probs[i], full.token_ids[i]))[:m]
    assert sorted(cut.token_ids.tolist()) == sorted(full.token_ids[order].tolist())
    assert (cut.probs == cut.probs.astype(np.float32)).all()
    assert abs(cut.probs.sum() - 1) < 1e-6
    ratio = cut.probs / full.probs[np.searchsorted(full.token_ids, cut.token_ids)]
    assert np.allclose(ratio, ratio[0], rtol=1e-6)


def test_a_truncated_law_has_no_token_that_float32_cannot_hold():
    assert truncate(Law(np.array([4, 7]), np.array([1.0, 1e-60])), 2).token_ids.tolist() == [4]
