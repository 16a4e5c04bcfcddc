"""The shared noise is exponential, independent along every axis, and draws from the law."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from forerun.core.noise import exponentials, keyed_draw, noise_key, uniforms
from forerun.core.sampling import kept, law
from forerun.core.types import Sampling

KEY = noise_key(7, [1, 2, 3])
IDS = np.arange(49152)


def test_the_key_is_blake2b_over_the_packed_seed_and_prompt():
    packed = (5).to_bytes(8, "little") + (1).to_bytes(4, "little") + (49151).to_bytes(4, "little")
    assert noise_key(5, [1, 49151]) == hashlib.blake2b(packed, digest_size=32).digest()
    assert len(noise_key(2**64 - 1, [])) == 32


def test_keys_differ_by_seed_and_by_prompt():
    keys = [noise_key(0, [1]), noise_key(1, [1]), noise_key(0, [2]), noise_key(0, [1, 0]), noise_key(0, [])]
    assert len(set(keys)) == len(keys)


def test_noise_of_a_token_depends_on_nothing_but_key_position_and_token():
    whole = exponentials(KEY, 40, IDS)
    some = np.array([49151, 3, 3, 17000, 0])
    assert (exponentials(KEY, 40, some) == whole[some]).all()


def test_the_noise_is_pinned():
    # Another build that computes other bits could not continue this build's seeded sessions.
    u = uniforms(bytes(range(32)), 5, np.array([0, 1, 49151]))
    assert (u * 2**32 - 0.5).tolist() == [2962398636, 1723893844, 494554604]


def test_noise_is_uniform_over_tokens_positions_and_keys():
    samples = {
        "tokens": uniforms(KEY, 0, IDS),
        "positions": np.concatenate([uniforms(KEY, p, IDS[:4]) for p in range(4000)]),
        "keys": np.concatenate([uniforms(noise_key(s, []), 9, IDS[:4]) for s in range(4000)]),
    }
    for axis, u in samples.items():
        assert ((u > 0) & (u < 1)).all()
        assert stats.kstest(u, "uniform").pvalue > 0.001, axis


def test_exponentials_have_their_law():
    e = exponentials(KEY, 3, IDS)
    assert e.dtype == np.float64
    assert (e > 0).all()
    assert stats.kstest(e, "expon").pvalue > 0.001


def test_neighbours_are_independent():
    here = uniforms(KEY, 100, IDS)
    others = {
        "next token": np.roll(here, 1),
        "next position": uniforms(KEY, 101, IDS),
        "far position": uniforms(KEY, 100 + 2**32, IDS),
        "other seed": uniforms(noise_key(8, [1, 2, 3]), 100, IDS),
    }
    for name, there in others.items():
        table, _, _ = np.histogram2d(here, there, bins=8, range=[[0, 1], [0, 1]])
        assert stats.chisquare(table.ravel()).pvalue > 0.001, name


@pytest.mark.parametrize(
    "s",
    [Sampling(1.0), Sampling(0.7, top_k=5), Sampling(1.5, top_p=0.9), Sampling(1.0, min_p=0.1)],
)
def test_keyed_draw_has_exactly_the_law(s):
    logits = np.array([2.0, 1.5, 1.5, 0.3, 0.0, -0.5, -2.0, -math.inf], dtype=np.float32)
    counts = np.bincount([keyed_draw(logits, s, KEY, p) for p in range(6_000)], minlength=8)
    expected = np.zeros(8)
    target = law(logits, s)
    expected[target.token_ids] = target.probs
    assert counts[expected == 0].sum() == 0
    support = expected > 0
    assert stats.chisquare(counts[support], 6_000 * expected[support]).pvalue > 0.001


def test_keyed_draw_has_the_law_over_seeds_at_one_position():
    logits = np.array([1.0, 0.0, -1.0], dtype=np.float32)
    counts = np.bincount([keyed_draw(logits, Sampling(1.0), noise_key(s, [1]), 1) for s in range(6_000)])
    assert stats.chisquare(counts, 6_000 * law(logits, Sampling(1.0)).probs).pvalue > 0.001


def first_to_ring(logits, s, key, position) -> int:
    """The definition, with nothing left out early."""
    ids = np.sort(kept(logits, s))
    highest = float(logits.max())
    e = np.exp((logits[ids].astype(np.float64) - highest) / (s.temperature or 1.0))
    times = exponentials(key, position, ids) / e
    return int(ids[np.argmin(times)])


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**40),
    st.sampled_from([0.0, 1e-6, 1e-3, 0.1, 1.0, 3.0, 100.0]),
    st.sampled_from([0, 1, 5, 300]),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from([0.1, 2.0, 30.0]),
)
def test_leaving_out_tokens_that_cannot_win_changes_no_draw(
    seed, position, temperature, top_k, top_p, spread
):
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(size=2000) * spread, 1).astype(np.float32)
    s = Sampling(temperature, top_k, top_p)
    key = noise_key(seed, [])
    assert keyed_draw(logits, s, key, position) == first_to_ring(logits, s, key, position)


def test_similar_logits_mostly_draw_the_same_token():
    rng = np.random.default_rng(3)
    logits = rng.normal(size=1000).astype(np.float32) * 3
    near = logits + rng.normal(size=1000).astype(np.float32) * 0.1
    same = sum(
        keyed_draw(logits, Sampling(1.0), KEY, p) == keyed_draw(near, Sampling(1.0), KEY, p)
        for p in range(500)
    )
    assert same > 400
