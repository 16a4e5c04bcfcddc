"""The rejection rule in closed form, and what each decider and proposer promises."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.core.acceptance import (
    UNNAMED,
    Candidate,
    Coupled,
    Greedy,
    Rejection,
    accept_prob,
    candidate_law,
    check_law,
    decider,
    draw,
    prob,
    residual,
)
from forerun.core.noise import keyed_draw, noise_key
from forerun.core.proposer import Foreseeing, RejectionProposer, proposer
from forerun.core.sampling import law
from forerun.core.types import Law, Mode, Sampler, Sampling
from forerun.errors import InternalFault, InvalidRequest

VOCAB = 6

# Sparse laws: zeros are as likely as anything.
masses = st.lists(st.one_of(st.just(0.0), st.floats(1e-9, 1.0)), min_size=VOCAB, max_size=VOCAB).filter(
    lambda row: sum(row) > 0
)


def sparse(row) -> Law:
    probs = np.array(row)
    ids = np.flatnonzero(probs)
    return Law(ids, probs[ids] / probs.sum())


def dense(of: Law) -> np.ndarray:
    row = np.zeros(VOCAB)
    row[of.token_ids] = of.probs
    return row


def emitted(target: Law, draft: Law, *, accept=accept_prob, correct=residual) -> np.ndarray:
    """The law of the settled token in closed form: sum over every draft x of q(x) · what then happens."""
    out = np.zeros(VOCAB)
    for x, q in zip(draft.token_ids.tolist(), draft.probs.tolist(), strict=True):
        a = accept(target, draft, x)
        out[x] += q * a
        if a < 1:
            out += q * (1 - a) * dense(correct(target, draft, VOCAB))
    return out


@given(masses, masses)
def test_emitted_token_has_exactly_the_target_law(p, q):
    target, draft = sparse(p), sparse(q)
    assert np.abs(emitted(target, draft) - dense(target)).max() < 1e-12


@given(masses, st.integers(0, VOCAB - 1))
def test_emitted_token_has_exactly_the_target_law_whatever_look_up_says(p, x):
    target = sparse(p)
    assert np.abs(emitted(target, candidate_law(Candidate(x))) - dense(target)).max() < 1e-12


@given(masses, masses)
def test_a_token_the_target_never_says_is_never_accepted(p, q):
    target, draft = sparse(p), sparse(q)
    for x in range(VOCAB):
        if prob(target, x) == 0:
            assert accept_prob(target, draft, x) == 0.0
        assert 0 <= accept_prob(target, draft, x) <= 1


def test_the_worked_example_gives_exactly_the_target():
    target, draft = sparse([0.5, 0.3, 0.2, 0, 0, 0]), sparse([0.8, 0.1, 0.1, 0, 0, 0])
    assert accept_prob(target, draft, 0) == pytest.approx(0.625, abs=1e-15)
    assert accept_prob(target, draft, 1) == accept_prob(target, draft, 2) == 1.0
    assert dense(residual(target, draft, VOCAB))[:3] == pytest.approx([0, 2 / 3, 1 / 3], abs=1e-15)
    assert emitted(target, draft)[:3] == pytest.approx([0.5, 0.3, 0.2], abs=1e-15)


@pytest.mark.parametrize(
    "broken",
    [
        {"correct": lambda target, draft, vocab: target},  # p drawn instead of the residual
        {"accept": lambda target, draft, x: prob(target, x)},  # the draft's law ignored
        {"accept": lambda target, draft, x: float(prob(target, x) > 0)},  # accepts all it could
        {"correct": lambda target, draft, vocab: residual(draft, target, vocab)},  # p and q swapped
    ],
)
def test_a_broken_rule_fails_the_closed_form(broken):
    target, draft = sparse([0.5, 0.3, 0.2, 0, 0, 0]), sparse([0.8, 0.1, 0.1, 0, 0, 0])
    assert np.abs(emitted(target, draft, **broken) - dense(target)).max() > 0.01


def test_equal_laws_leave_no_residual_and_no_fault():
    target = sparse([0.5, 0.3, 0.2, 0, 0, 0])
    assert dense(residual(target, target, VOCAB)).tolist() == dense(target).tolist()


@given(masses)
def test_a_residual_that_rounding_consumed_is_still_a_law_of_the_target(p):
    target = sparse(p)
    above = Law(target.token_ids, np.nextafter(target.probs, 2))
    rest = residual(target, above, VOCAB)
    assert rest.probs.sum() == pytest.approx(1)
    assert set(rest.token_ids.tolist()) <= set(target.token_ids.tolist())


def test_a_draft_law_with_ids_beyond_the_vocabulary_does_no_harm():
    target = sparse([0.5, 0.5, 0, 0, 0, 0])
    draft = Law(np.array([0, 99]), np.array([0.5, 0.5]))
    assert dense(residual(target, draft, VOCAB)).tolist() == [0, 1, 0, 0, 0, 0]


@given(masses, st.floats(0, 1, exclude_max=True))
def test_draw_never_gives_a_token_of_probability_zero(row, u):
    source = Law(np.arange(VOCAB), np.array(row))
    assert row[draw(source, u)] > 0
    assert row[draw(source, math.nextafter(1, 0))] > 0
    assert row[draw(source, 0.0)] > 0


def test_draw_is_the_quantile():
    source = Law(np.array([7, 3, 5]), np.array([0.25, 0.5, 0.25]))
    assert [draw(source, u) for u in (0, 0.2499, 0.25, 0.7499, 0.75, 0.9999)] == [7, 7, 3, 3, 5, 5]


LOGITS = np.array([0.0, 2.0, 2.0, 1.0, -1.0, -math.inf], dtype=np.float32)


def test_greedy_settles_the_lower_of_tied_tokens_and_accepts_only_it():
    assert Greedy().decide(LOGITS, 0, []) == (1, False)
    assert Greedy().decide(LOGITS, 0, [Candidate(2)]) == (1, False)
    assert Greedy().decide(LOGITS, 0, [Candidate(2), Candidate(1)]) == (1, True)


@given(st.lists(st.integers(0, VOCAB - 1), max_size=4), st.integers(0, 1000))
def test_coupled_settles_the_same_token_whatever_was_drafted(drafted, position):
    key, s = noise_key(3, [1]), Sampling(1.0)
    token_id, accepted = Coupled(s, key).decide(LOGITS, position, [Candidate(x) for x in drafted])
    assert token_id == keyed_draw(LOGITS, s, key, position)
    assert accepted == (token_id in drafted)


def test_rejection_refuses_to_test_two_candidates_at_one_position():
    with pytest.raises(ValueError, match="one candidate"):
        Rejection(Sampling(1.0), np.random.default_rng(0)).decide(LOGITS, 0, [Candidate(1), Candidate(2)])


def test_rejection_streams_are_independent_of_each_other_and_of_the_drafter():
    logits = np.zeros(VOCAB, dtype=np.float32)
    s, entropy = Sampling(1.0), b"the same entropy"
    proposals = proposer(Mode.REJECTION, s, b"", entropy)
    settles = decider(Mode.REJECTION, s, b"", entropy)
    drafted = [proposals.draw(logits, i)[0] for i in range(3000)]
    settled = [settles.decide(logits, i, [])[0] for i in range(3000)]
    agree = np.mean(np.array(drafted) == np.array(settled))
    assert abs(agree - 1 / VOCAB) < 0.04
    other = decider(Mode.REJECTION, s, b"", b"other entropy")
    assert settled != [other.decide(logits, i, [])[0] for i in range(3000)]


def test_the_modes_have_their_deciders_and_proposers():
    s = Sampling(1.0)
    assert isinstance(decider(Mode.GREEDY, Sampling(), b"", b""), Greedy)
    assert isinstance(decider(Mode.COUPLED, s, b"k" * 32, b""), Coupled)
    assert isinstance(decider(Mode.REJECTION, s, b"", b"e"), Rejection)
    assert isinstance(proposer(Mode.GREEDY, Sampling(), b"", b""), Foreseeing)
    assert isinstance(proposer(Mode.REJECTION, s, b"", b"e"), RejectionProposer)


def test_greedy_and_coupled_proposals_are_what_the_target_would_settle_on_these_logits():
    key, s = noise_key(1, [2]), Sampling(0.8)
    for position in range(50):
        assert proposer(Mode.GREEDY, Sampling(), b"", b"").draw(LOGITS, position) == (1, None)
        expected = Coupled(s, key).decide(LOGITS, position, [])[0]
        assert proposer(Mode.COUPLED, s, key, b"").draw(LOGITS, position) == (expected, None)


def test_a_token_that_the_engine_named_is_settled_as_it_is_and_one_it_could_not_name_is_a_fault():
    key, s = noise_key(1, [2]), Sampling(0.8)
    for mode, sampling in ((Mode.GREEDY, Sampling()), (Mode.COUPLED, s)):
        settles, foresees = decider(mode, sampling, key, b""), proposer(mode, sampling, key, b"")
        assert settles.sampler == foresees.sampler == Sampler(sampling, key if mode == Mode.COUPLED else b"")
        assert settles.decide(np.int64(4), 0, [Candidate(3)]) == (4, False)
        assert settles.decide(np.int64(4), 0, [Candidate(3), Candidate(4)]) == (4, True)
        assert foresees.draw(np.int64(4), 0) == (4, None)
        with pytest.raises(InternalFault, match="not a number"):
            settles.decide(np.int64(UNNAMED), 0, [])


def test_rejection_takes_laws_alone():
    assert decider(Mode.REJECTION, Sampling(1.0), b"", b"e").sampler is None
    for refuses in (
        lambda: decider(Mode.REJECTION, Sampling(1.0), b"", b"e").decide(np.int64(1), 0, []),
        lambda: proposer(Mode.REJECTION, Sampling(1.0), b"", b"e").draw(np.int64(1), 0),
    ):
        with pytest.raises(ValueError, match="law"):
            refuses()


@given(st.binary(min_size=1, max_size=16), st.integers(1, 6))
def test_a_rejection_proposal_ships_a_law_that_passes_the_check(entropy, m):
    token_id, shipped = proposer(Mode.REJECTION, Sampling(1.0), b"", entropy, m).draw(LOGITS, 0)
    assert shipped is not None
    check_law(shipped, token_id)
    assert len(shipped.token_ids) <= m
    on_the_wire = shipped.probs.astype(np.float32).astype(np.float64)
    assert (on_the_wire == shipped.probs).all()


def test_at_temperature_zero_rejection_is_greedy():
    settles = decider(Mode.REJECTION, Sampling(0.0), b"", b"e")
    drafts = proposer(Mode.REJECTION, Sampling(0.0), b"", b"e")
    assert settles.decide(LOGITS, 0, []) == (1, False)
    assert settles.decide(LOGITS, 0, [Candidate(2)]) == (1, False)
    token_id, shipped = drafts.draw(LOGITS, 0)
    assert settles.decide(LOGITS, 0, [Candidate(token_id, shipped)]) == (1, True)


def test_a_law_that_leaves_its_token_out_counts_as_look_up():
    one_hot = candidate_law(Candidate(4, Law(np.array([1]), np.array([1.0]))))
    assert (one_hot.token_ids.tolist(), one_hot.probs.tolist()) == ([4], [1.0])


def test_a_law_is_divided_by_its_own_sum():
    q = candidate_law(Candidate(1, Law(np.array([1, 2]), np.array([0.5004, 0.5]))))
    assert q.probs.sum() == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([1, 2], [0.5, 0.4989]),
        ([1, 2], [0.5, 0.5011]),
        ([1, 2], [1.5, -0.5]),
        ([1, 2], [0.5, math.nan]),
        ([1, 2], [math.inf, 0.5]),
        ([1, 1], [0.5, 0.5]),
        ([2, 3], [0.5, 0.5]),
        ([1, 2], [0.0, 1.0]),
        ([], []),
        ([1, 2], [1.0]),
        ([[1]], [[1.0]]),
    ],
)
def test_a_law_that_is_none_is_refused(ids, probs):
    with pytest.raises(InvalidRequest) as caught:
        check_law(Law(np.array(ids, dtype=np.int64), np.array(probs, dtype=np.float64)), 1)
    assert caught.value.reason == "BAD_LAW"


def test_a_law_off_by_less_than_a_thousandth_is_accepted():
    check_law(Law(np.array([1, 2]), np.array([0.5, 0.4995])), 1)
    check_law(law(LOGITS, Sampling(1.0)), 3)
