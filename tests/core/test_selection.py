"""The law of emitted text, computed exactly by driving the real code with scripted uniforms.

A procedure is a function of its uniforms alone, constant on boxes of the unit cube. `law_of` walks every box
and returns the exact law of what the procedure emits. The same check passes for the rules and fails for each
broken one.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.acceptance import (
    Candidate,
    Rejection,
    accept_prob,
    candidate_law,
    draw,
    prob,
    residual,
    verify,
)
from forerun.core.draft_tree import DraftTree
from forerun.core.proposer import RejectionProposer
from forerun.core.sampling import law, truncate
from forerun.core.types import Law, Sampling

S = Sampling(1.0)
EDGE = 1e-13  # how near to a box's border its value is probed
P_ROW, Q_ROW = np.log(np.array([0.5, 0.3, 0.2], np.float32)), np.log(np.array([0.8, 0.1, 0.1], np.float32))


class Uniforms:
    """Stands in for a Generator: hands out scripted uniforms; `spawn` gives children with their own."""

    def __init__(self, values=(), children=()) -> None:
        self._values: Iterator[float] = iter(values)
        self._children = children

    def random(self) -> float:
        return next(self._values)

    def spawn(self, _: int):
        return self._children


def rejection(accept, draws) -> Rejection:
    return Rejection(S, Uniforms(children=(Uniforms(accept), Uniforms(draws))))


def propose(logits, w: float, m: int = 64) -> tuple[int, Law]:
    token_id, shipped = RejectionProposer(S, Uniforms([w]), m).draw(logits, 0)
    assert shipped is not None
    return token_id, shipped


def law_of(procedure: Callable, borders: list[list[float]], *, corners: bool = True) -> Counter:
    """Sum the volumes of the boxes by what is emitted; every corner of a box must emit the same."""
    axes = []
    for axis in borders:
        edges = sorted({0.0, 1.0, *(b for b in axis if 0 < b < 1)})
        axes.append([(a, b) for a, b in itertools.pairwise(edges) if b - a > 3 * EDGE])
    total: Counter = Counter()
    for box in itertools.product(*axes):
        middle = procedure(*[(a + b) / 2 for a, b in box])
        if corners:
            for corner in itertools.product(*[(a + EDGE, b - EDGE) for a, b in box]):
                assert procedure(*corner) == middle, f"not constant on {box}"
        total[middle] += float(np.prod([b - a for a, b in box]))
    return total


def borders_of(target: Law, draft: Law, vocab: int) -> tuple[list[float], list[float], list[float]]:
    """Where a drafter's draw, an acceptance and a target's draw can change their outcome."""
    w = list(np.cumsum(draft.probs) / draft.probs.sum())
    u = [accept_prob(target, q, x) for q in (draft, *map(one_hot, range(vocab))) for x in range(vocab)]
    rests = [
        target,
        residual(target, draft, vocab),
        *(residual(target, one_hot(x), vocab) for x in range(vocab)),
    ]
    return w, u, [v for rest in rests for v in np.cumsum(rest.probs) / rest.probs.sum()]


def one_hot(x: int) -> Law:
    return Law(np.array([x]), np.ones(1))


def error(found: Counter, target: Law) -> float:
    """Total variation between what was emitted and the target's law."""
    wanted = dict(zip(target.token_ids.tolist(), target.probs.tolist(), strict=True))
    return sum(abs(found[x] - wanted.get(x, 0.0)) for x in {*found, *wanted}) / 2


class TestOnePosition:
    """Drafts by the real proposer, decisions by the real decider."""

    @settings(max_examples=60)
    @given(
        st.lists(st.floats(-9, 3, width=32), min_size=3, max_size=3),
        st.lists(st.floats(-9, 3, width=32), min_size=3, max_size=3),
        st.integers(1, 3),
    )
    def test_settled_token_has_exactly_the_target_law(self, p_row, q_row, m):
        target_logits, draft_logits = np.array(p_row, np.float32), np.array(q_row, np.float32)

        def procedure(w, u, v):
            x, shipped = propose(draft_logits, w, m)
            return rejection([u], [v]).decide(target_logits, 0, [Candidate(x, shipped)])[0]

        target = law(target_logits, S)
        draft = candidate_law(Candidate(*propose(draft_logits, 0.0, m)))
        assert error(law_of(procedure, list(borders_of(target, draft, 3))), target) < 1e-11

    def test_the_worked_example_gives_exactly_the_target(self):
        assert self.bias(lambda w, u, v: (propose(Q_ROW, w), u, v)) < 1e-12

    def test_the_drafters_noise_reused_for_the_accept_test_is_biased(self):
        assert self.bias(lambda w, u, v: (propose(Q_ROW, w), w, v)) > 0.05

    def test_the_drafters_noise_reused_for_the_correction_is_biased(self):
        assert self.bias(lambda w, u, v: (propose(Q_ROW, w), u, w)) > 0.01

    def test_the_accept_uniform_reused_for_the_correction_is_biased(self):
        assert self.bias(lambda w, u, v: (propose(Q_ROW, w), u, u)) > 0.05

    def test_a_law_truncated_after_sampling_is_biased(self):
        def top_and(x: int) -> Law:
            ids = np.unique([0, x])
            return truncate(Law(ids, np.array([0.8, 0.1])[: len(ids)]), 2)

        def truncated_after(w, u, v):
            x = propose(Q_ROW, w)[0]
            return (x, top_and(x)), u, v

        assert self.bias(truncated_after, *(candidate_law(Candidate(x, top_and(x))) for x in range(3))) > 0.05

    def test_a_draft_whose_law_is_left_aside_counts_as_look_up_and_is_exact(self):
        assert self.bias(lambda w, u, v: ((propose(Q_ROW, w)[0], None), u, v)) < 1e-12

    def test_a_law_the_token_was_not_drawn_from_is_biased(self):
        def drawn_elsewhere(w, u, v):
            return (propose(P_ROW, w)[0], propose(Q_ROW, w)[1]), u, v

        assert self.bias(drawn_elsewhere, candidate_law(Candidate(*propose(P_ROW, 0.0)))) > 0.05

    @staticmethod
    def bias(drafted, *laws: Law) -> float:
        """Total variation of the worked example; `drafted(w, u, v)`: (token, law), two uniforms.

        `laws`: those at work besides q.
        """
        target, draft = law(P_ROW, S), candidate_law(Candidate(*propose(Q_ROW, 0.0)))

        def procedure(w, u, v):
            (x, q), accept, correct = drafted(w, u, v)
            return rejection([accept], [correct]).decide(P_ROW, 0, [Candidate(x, q)])[0]

        shared = [b for q in (draft, *laws) for axis in borders_of(target, q, 3) for b in axis]
        return error(law_of(procedure, [shared] * 3, corners=not laws), target)


class TestSelection:
    """What is tested, when, and with whose token: the draft tree and `verify` between drafter and decider."""

    TARGET = law(P_ROW, S)
    DRAFT = candidate_law(Candidate(*propose(Q_ROW, 0.0)))

    def emitted(
        self, plant, *, merge: bool = False, plan_limit: int = 1, choose=lambda tree, x: 1
    ) -> Counter:
        """The law of the next token when `plant(tree, x, q)` hangs what the drafters say."""

        def procedure(w, u, v):
            tree = DraftTree([9], merge=merge)
            for stream in (1, 2):
                tree.open_stream(stream, 4)
            x, q = propose(Q_ROW, w)
            plant(tree, x, q)
            stream = choose(tree, x)
            plan = tree.plan(plan_limit, stream)
            rows = np.stack([P_ROW] * (len(plan) + 1))
            return verify(rejection([u] * 3, [v] * 3), rows, tree, plan, stream).token_ids[0]

        return law_of(procedure, list(borders_of(self.TARGET, self.DRAFT, 3)))

    @staticmethod
    def model(tree: DraftTree, x: int, q: Law) -> None:
        tree.graft(1, 1, 0, 1, [x], [q])

    @staticmethod
    def model_and_look_up(tree: DraftTree, x: int, q: Law) -> None:
        tree.graft(1, 1, 0, 1, [x], [q])
        tree.graft(2, 1, 0, 1, [0])

    @pytest.mark.parametrize("plan_limit", [0, 1])
    def test_a_child_is_tested_in_the_plan_or_waiting_alike(self, plan_limit):
        assert error(self.emitted(self.model, plan_limit=plan_limit), self.TARGET) < 1e-12

    @pytest.mark.parametrize("stream", [1, 2])
    @pytest.mark.parametrize("plan_limit", [0, 1])
    def test_two_streams_do_not_touch_each_other(self, stream, plan_limit):
        found = self.emitted(self.model_and_look_up, plan_limit=plan_limit, choose=lambda tree, x: stream)
        assert error(found, self.TARGET) < 1e-12

    def test_a_second_draw_for_the_same_place_is_refused(self):
        def draws_again(tree, x, q):
            tree.graft(1, 1, 0, 1, [x], [q])
            if x != 0:  # unhappy with what it drew
                tree.graft(1, 1, 0, 2, [0], [q])

        assert error(self.emitted(draws_again), self.TARGET) < 1e-12

    def test_a_restart_after_a_token_was_drawn_leaves_that_token_to_be_tested(self):
        def begins_anew(tree, x, q):
            tree.graft(1, 1, 0, 1, [9, x], [one_hot(9), q])
            tree.settle([9])
            if x != 0:
                tree.graft(1, 2, 0, 3, [0], [q])

        assert error(self.emitted(begins_anew), self.TARGET) < 1e-12

    def test_a_late_draft_salvaged_under_the_settled_text_is_not_biased(self):
        def late(tree, x, q):
            tree.settle([9])
            tree.graft(1, 1, 0, 1, [9, x], [one_hot(9), q])

        assert error(self.emitted(late), self.TARGET) < 1e-12

    def test_withholding_low_confidence_tokens_is_biased_by_a_tenth(self):
        def confident_only(tree, x, q):
            if prob(q, x) > 0.5:
                self.model(tree, x, q)

        found = self.emitted(confident_only)
        assert [found[x] for x in range(3)] == pytest.approx([0.6, 0.26, 0.14], abs=1e-6)
        assert error(found, self.TARGET) == pytest.approx(0.10, abs=1e-6)

    def test_testing_only_where_look_up_agrees_is_biased(self):
        # A merged tree, of which the path both streams say is checked.
        found = self.emitted(
            self.model_and_look_up,
            merge=False,
            choose=lambda tree, x: 1 if len(tree.plan(1, 1)) and x == tree.plan(1, 2)[0].token_id else None,
        )
        assert [found[x] for x in range(3)] == pytest.approx([0.6, 0.26, 0.14], abs=1e-6)

    def test_choosing_the_stream_by_its_token_is_biased(self):
        found = self.emitted(self.model_and_look_up, choose=lambda tree, x: 1 if x == 1 else 2)
        assert error(found, self.TARGET) > 0.01

    def test_a_merged_tree_cannot_be_decided_by_the_rejection_rule(self):
        with pytest.raises(ValueError, match="one candidate"):
            self.emitted(self.model_and_look_up, merge=True)

    def test_a_second_sibling_tested_against_p_is_biased_by_fifteen_hundredths(self):
        def second_chance(w, w2, u, u2, v):
            for wi, ui in ((w, u), (w2, u2)):
                x = draw(self.DRAFT, wi)
                if ui < accept_prob(self.TARGET, self.DRAFT, x):
                    return x
            return draw(residual(self.TARGET, self.DRAFT, 3), v)

        w, u, v = borders_of(self.TARGET, self.DRAFT, 3)
        found = law_of(second_chance, [w, w, u[:3], u[:3], v], corners=False)
        assert [found[x] for x in range(3)] == pytest.approx([0.65, 0.19, 0.16], abs=1e-6)
        assert error(found, self.TARGET) == pytest.approx(0.15, abs=1e-6)


class TestTwoPositions:
    """The joint law of two tokens of two kinds, whatever part was drafted, planned or waiting."""

    HEAD = np.log(np.array([0.6, 0.4], np.float32))
    NEXT = np.log(np.array([[0.25, 0.75], [0.9, 0.1]], np.float32))  # row: the token before
    DRAFT_HEAD = np.log(np.array([0.3, 0.7], np.float32))
    DRAFT_NEXT = np.log(np.array([[0.5, 0.5], [0.2, 0.8]], np.float32))

    def joint(self) -> dict:
        p1 = law(self.HEAD, S).probs
        p2 = [law(row, S).probs for row in self.NEXT]
        return {(a, b): p1[a] * p2[a][b] for a in range(2) for b in range(2)}

    def emitted(self, num_drafted: int, plan_limit: int, *, skip_waiting: bool = False) -> Counter:
        def procedure(w1, w2, u1, u2, v1, v2):
            tree = DraftTree([9], merge=False)
            tree.open_stream(1, 4)
            x1, q1 = propose(self.DRAFT_HEAD, w1)
            x2, q2 = propose(self.DRAFT_NEXT[x1], w2)
            tree.graft(1, 1, 0, 1, [x1, x2][:num_drafted], [q1, q2][:num_drafted])
            text: list[int] = []
            while len(text) < 2:
                at = len(text)
                plan = tree.plan(min(plan_limit, 1 - at), 1)
                chain = [self.HEAD if at == 0 else self.NEXT[text[-1]]]
                chain += [self.NEXT[node.token_id] for node in plan]
                stream = 1
                if skip_waiting and tree.plan(1, 1) and tree.plan(1, 1)[0].token_id == 1:
                    plan, stream, chain = (), None, chain[:1]
                rules = rejection([u1, u2][at:], [v1, v2][at:])
                settled = verify(rules, np.stack(chain), tree, plan, stream).token_ids
                tree.settle(settled)
                text += settled
            return tuple(text[:2])

        w, u, v = [], [], []
        for p_row, q_row in [(self.HEAD, self.DRAFT_HEAD), *zip(self.NEXT, self.DRAFT_NEXT, strict=True)]:
            target, draft = law(p_row, S), candidate_law(Candidate(*propose(q_row, 0.0)))
            w.append(np.cumsum(draft.probs)[:1].tolist())
            u.append([accept_prob(target, draft, x) for x in range(2)])
            v.append([float(np.cumsum(target.probs)[0])])
        # A bonus is drawn with the first uniform of its stream, so either may meet any border.
        shared_u, shared_v = u[0] + u[1] + u[2], v[0] + v[1] + v[2]
        axes = [w[0], w[1] + w[2], shared_u, shared_u, shared_v, shared_v]
        return law_of(procedure, axes, corners=False)

    @pytest.mark.parametrize("num_drafted", [0, 1, 2])
    @pytest.mark.parametrize("plan_limit", [0, 1])
    def test_the_joint_law_is_the_targets(self, num_drafted, plan_limit):
        found = self.emitted(num_drafted, plan_limit)
        assert sum(abs(found[pair] - p) for pair, p in self.joint().items()) / 2 < 1e-11

    def test_passing_over_a_waiting_child_because_of_its_token_is_biased(self):
        found = self.emitted(2, 0, skip_waiting=True)
        assert sum(abs(found[pair] - p) for pair, p in self.joint().items()) / 2 > 0.02
