"""The one loop: worked rounds, waiting children, salvage, and text that no draft can change."""

import hashlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.acceptance import Coupled, Decider, Greedy, Outcome, Rejection, decider, verify
from forerun.core.draft_tree import DraftTree
from forerun.core.noise import noise_key
from forerun.core.types import Law, Mode, Origin, Sampling

WORDS = ["the", "bell", "will", "soon", "ring", "again", ",", "waking", "city", "at", "dawn"]
D, C, B, P = Origin.DRAFTED, Origin.CORRECTION, Origin.BONUS, Origin.PLAIN


def ids(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


def certain(text: str) -> np.ndarray:
    """One row of logits a word: the target is certain of it."""
    rows = np.full((len(text.split()), len(WORDS)), -20.0, np.float32)
    rows[np.arange(len(rows)), ids(text)] = 20.0
    return rows


def one_hot(token_id: int) -> Law:
    return Law(np.array([token_id]), np.ones(1))


@dataclass
class Round:
    """One pass over what one drafter said after "the"; words in, words out."""

    mode: Mode
    drafted: str
    target: str
    plan_limit: int = 4

    def play(self) -> tuple[Outcome, str]:
        tree = DraftTree(ids("the"), merge=self.mode != Mode.REJECTION)
        tree.open_stream(1, 8)
        drafted = ids(self.drafted)
        laws = [one_hot(x) for x in drafted] if self.mode == Mode.REJECTION else []
        tree.graft(1, 1, 0, 1, drafted, laws)
        plan = tree.plan(self.plan_limit, 1)
        rows = certain(self.target)[: len(plan) + 1]
        rules = decider(self.mode, Sampling(float(self.mode != Mode.GREEDY)), b"k" * 32, b"e")
        outcome = verify(rules, rows, tree, plan, 1)
        return outcome, " ".join(WORDS[i] for i in outcome.token_ids)


@pytest.mark.parametrize("mode", list(Mode))
class TestWorkedRounds:
    def test_two_right_words_and_a_correction_settle_three(self, mode):
        outcome, text = Round(mode, "bell will soon ring", "bell will ring again ,").play()
        assert text == "bell will ring"
        assert outcome.origins == (D, D, C)
        assert (outcome.num_tested, outcome.num_accepted, outcome.num_salvaged) == (3, 2, 0)
        assert outcome.target_token_ids == outcome.token_ids
        assert [node.token_id for node in outcome.accepted] == ids("bell will")
        assert [node.token_id for node in outcome.refused] == ids("soon")

    def test_four_right_words_settle_five_with_the_bonus(self, mode):
        outcome, text = Round(mode, "again , waking the", "again , waking the city").play()
        assert text == "again , waking the city"
        assert outcome.origins == (D, D, D, D, B)
        assert (outcome.num_tested, outcome.num_accepted) == (4, 4)
        assert outcome.refused == ()

    def test_a_first_mismatch_settles_exactly_one(self, mode):
        outcome, text = Round(mode, "soon bell ring at", "at dawn the bell will").play()
        assert text == "at"
        assert outcome.origins == (C,)
        assert (outcome.num_tested, outcome.num_accepted) == (1, 0)

    def test_nothing_drafted_settles_one_plain_token(self, mode):
        outcome, text = Round(mode, "", "bell").play()
        assert (text, outcome.origins, outcome.num_tested) == ("bell", (P,), 0)

    def test_a_waiting_child_is_tested_at_the_last_row(self, mode):
        outcome, text = Round(mode, "bell will ring", "bell will ring", plan_limit=2).play()
        assert text == "bell will ring"
        assert outcome.origins == (D, D, D)
        assert (outcome.num_tested, outcome.num_accepted, outcome.num_salvaged) == (3, 3, 1)

    def test_a_waiting_child_that_is_wrong_is_corrected_not_passed_over(self, mode):
        outcome, text = Round(mode, "bell will ring", "bell will soon", plan_limit=2).play()
        assert (text, outcome.origins, outcome.num_tested) == ("bell will soon", (D, D, C), 3)

    def test_a_waiting_child_is_tested_with_a_plan_of_length_0(self, mode):
        right, text = Round(mode, "bell will", "bell", plan_limit=0).play()
        assert (text, right.origins, right.num_salvaged) == ("bell", (D,), 1)
        wrong, text = Round(mode, "soon will", "bell", plan_limit=0).play()
        assert (text, wrong.origins, wrong.num_tested) == ("bell", (C,), 1)


def tree_with(*chains: str, merge: bool = True) -> DraftTree:
    tree = DraftTree(ids("the"), merge=merge)
    for stream, chain in enumerate(chains, start=1):
        tree.open_stream(stream, 8)
        tree.graft(stream, 1, 0, 1, ids(chain))
    return tree


def test_a_matching_sibling_outside_the_plan_is_salvaged():
    tree = tree_with("bell will soon", "bell at dawn")
    plan = tree.plan(3, stream=1)
    outcome = verify(Greedy(), certain("bell at soon ring"), tree, plan, None)
    assert outcome.token_ids == tuple(ids("bell at"))
    assert outcome.origins == (D, D)
    assert (outcome.num_accepted, outcome.num_salvaged) == (2, 1)
    tree.settle(outcome.token_ids)
    assert [node.token_id for node in tree.plan(3)] == ids("dawn")
    assert (tree.head_node(1), tree.head_node(2)) == (0, 2)


def test_a_draft_that_arrives_during_the_pass_is_tested_where_it_waits():
    tree = tree_with("bell will")
    plan = tree.plan(4)
    tree.graft(1, 1, 2, 3, ids("soon ring"))
    outcome = verify(Greedy(), certain("bell will soon"), tree, plan, None)
    assert (outcome.origins, outcome.num_salvaged) == ((D, D, D), 1)


@pytest.mark.parametrize("merge", [True, False])
def test_a_plan_outlives_its_drafter(merge):
    tree = tree_with("bell will", merge=merge)
    plan = tree.plan(4, stream=1)
    tree.close_stream(1)
    outcome = verify(Greedy(), certain("bell will ring"), tree, plan, 1)
    assert outcome.origins == (D, D, B)
    tree.settle(outcome.token_ids)
    assert (tree.num_nodes, tree.base) == (0, 4)


def test_late_drafts_count_as_salvaged():
    tree = DraftTree(ids("the"), merge=True)
    tree.open_stream(1, 8)
    tree.settle(ids("bell"))
    tree.graft(1, 1, 0, 1, ids("bell will soon"))
    outcome = verify(Greedy(), certain("will soon ring"), tree, tree.plan(4), None)
    assert (outcome.origins, outcome.num_salvaged) == ((D, D, B), 2)


def test_in_rejection_mode_only_the_chosen_streams_child_is_tested():
    tree = tree_with("bell will", "soon ring", merge=False)
    rules = Rejection(Sampling(1.0), np.random.default_rng(1))
    assert verify(rules, certain("soon"), tree, (), 1).origins == (C,)
    assert verify(rules, certain("soon"), tree, (), 2).origins == (D,)
    assert verify(rules, certain("soon"), tree, (), None).origins == (P,)


def test_verify_leaves_the_tree_alone():
    tree = tree_with("bell will soon", "at dawn")
    verify(Greedy(), certain("bell at soon"), tree, tree.plan(2), None)
    assert (tree.num_nodes, tree.base, tree.held(1), tree.held(2)) == (5, 1, 3, 2)


VOCAB = 4


def row_after(text: list[int]) -> np.ndarray:
    """The target: logits that depend on all the text, with many ties."""
    digest = hashlib.blake2b(bytes(text), digest_size=VOCAB).digest()
    return np.array([byte % 3 for byte in digest], np.float32)


def decode(rules: Decider, length: int, passes=()) -> list[int]:
    """Decode with drafts: one list of (base offset, parent 0 chain, stream) a pass."""
    tree = DraftTree([1, 2], merge=True)
    for stream in (1, 2, 3):
        tree.open_stream(stream, 6)
    next_id, last_base = 1, {1: 0, 2: 0, 3: 0}
    for drafts, limit in [*passes, *[((), 0)] * length]:
        for stream, back, chain in drafts:
            last_base[stream] = max(last_base[stream], tree.base - back)
            tree.graft(stream, last_base[stream], 0, next_id, chain)
            next_id += len(chain)
        plan = tree.plan(limit)
        path = [list(tree.token_ids)]
        for node in plan:
            path.append([*path[-1], node.token_id])
        rows = np.stack([row_after(text) for text in path])
        tree.settle(verify(rules, rows, tree, plan, None).token_ids)
    return tree.token_ids[:length]


tokens = st.integers(0, VOCAB - 1)
drafts = st.tuples(st.integers(1, 3), st.integers(0, 3), st.lists(tokens, max_size=5))
some_passes = st.lists(st.tuples(st.lists(drafts, max_size=3), st.integers(0, 4)), max_size=8)


@settings(max_examples=200)
@given(some_passes, st.integers(0, 2**64 - 1))
def test_coupled_text_is_a_function_of_prompt_settings_and_seed_alone(passes, seed):
    rules = Coupled(Sampling(1.0), noise_key(seed, [1, 2]))
    assert decode(rules, 14, passes) == decode(rules, 14)


@given(some_passes)
def test_greedy_text_is_the_same_under_any_drafts(passes):
    assert decode(Greedy(), 14, passes) == decode(Greedy(), 14)


@given(some_passes)
def test_every_pass_settles_a_token_and_stops_at_the_first_without_a_row(passes):
    tree = DraftTree([0], merge=True)
    for stream in (1, 2, 3):
        tree.open_stream(stream, 6)
    next_id, last_base = 1, {1: 0, 2: 0, 3: 0}
    for messages, limit in passes:
        for stream, back, chain in messages:
            last_base[stream] = max(last_base[stream], tree.base - back)
            tree.graft(stream, last_base[stream], 0, next_id, chain)
            next_id += len(chain)
        plan = tree.plan(limit)
        rows = np.stack([row_after([*tree.token_ids, i]) for i in range(len(plan) + 1)])
        outcome = verify(Greedy(), rows, tree, plan, None)
        assert 1 <= len(outcome.token_ids) <= len(plan) + 1
        assert len(outcome.origins) == len(outcome.token_ids)
        assert all(origin is D for origin in outcome.origins[:-1])
        assert outcome.num_accepted == len(outcome.accepted) == outcome.origins.count(D)
        assert outcome.num_tested == outcome.num_accepted + (outcome.origins[-1] is C)
        assert outcome.num_salvaged <= outcome.num_accepted
        held_before = tree.num_nodes
        torn = tree.settle(outcome.token_ids)
        assert torn + outcome.num_accepted + tree.num_nodes == held_before
