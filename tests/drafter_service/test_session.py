"""A drafting session keeps its credits, mirrors the verifier's tree, and obeys the selection rule."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafter_service.session import Counts, DraftSession
from drafter_service.sources.source import Drawn
from forerun.core.draft_tree import DraftTree
from forerun.core.types import FinishReason, Mode, Sampling, Snapshot, Verdict
from forerun.errors import InternalFault

PROMPT = (1, 2, 3)
END = 9


def snapshot(mode=Mode.GREEDY, *, window=8, next_length=4, last_position=64, tokens=PROMPT):
    key = bytes(32) if mode is Mode.COUPLED else b""
    sampling = Sampling(0.0 if mode is Mode.GREEDY else 1.0)
    return Snapshot(1, 1, tokens, mode, sampling, key, window, last_position, (END,), next_length)


def open_session(shot, *, max_context=None):
    return DraftSession("s", shot, max_context=max_context, entropy=bytes(32), counts=Counts())


def draw(session, *token_ids, ends=False):
    """Give the session these tokens for what it asks now; its message, if that completes a burst."""
    ask = session.ask()
    assert ask is not None
    return session.take(ask, Drawn(token_ids, ends=ends))


def verdict(base, *token_ids, head=0, seen=0, held=0, length=4, window=8, finish=FinishReason.NONE):
    return Verdict(base, token_ids, len(token_ids), 0, head, seen, held, length, window, finish)


def test_a_burst_is_one_message_of_next_length_tokens():
    session = open_session(snapshot(next_length=3))
    assert draw(session, 4) is None
    assert session.ask().token_ids == (*PROMPT, 4)
    assert session.ask().length == 2
    message = draw(session, 5, 6)
    assert (message.base, message.parent, message.first_id, message.token_ids) == (3, 0, 1, (4, 5, 6))


def test_drafting_goes_on_ahead_below_the_last_node_until_the_window_is_full():
    session = open_session(snapshot(window=8, next_length=4))
    first = draw(session, 4, 5, 6, 7)
    second = draw(session, 4, 5, 6, 7)
    assert (second.parent, second.first_id, second.base) == (4, 5, 3)
    assert session.ask() is None
    assert first.token_ids == second.token_ids


def test_a_burst_waits_until_there_is_room_for_all_of_it():
    session = open_session(snapshot(window=8, next_length=4))
    draw(session, 4, 5, 6, 7)
    draw(session, 4, 5, 6, 7)
    assert session.apply(verdict(3, 4, 5, head=2, seen=8, held=6))
    assert session.ask() is None
    assert session.apply(verdict(5, 6, 7, head=4, seen=8, held=4))
    assert session.ask().length == 4
    assert session.ask().token_ids == (*PROMPT, 4, 5, 6, 7, 4, 5, 6, 7)


def test_after_a_branch_is_torn_the_next_hangs_from_the_settled_text():
    session = open_session(snapshot())
    draw(session, 4, 5, 6, 7)
    assert session.apply(verdict(3, 4, 8, seen=4))
    message = draw(session, 6, 6, 6, 6)
    assert (message.base, message.parent, message.first_id) == (5, 0, 5)
    assert session.counts.num_restarts == 0


def test_when_the_own_node_is_the_head_the_next_branch_hangs_from_it():
    session = open_session(snapshot())
    draw(session, 4, 5, 6, 7)
    assert session.apply(verdict(3, 4, 5, 6, 7, head=4, seen=4))
    message = draw(session, 6, 6, 6, 6)
    assert (message.base, message.parent, message.first_id) == (7, 4, 5)


def test_a_bonus_that_equals_the_next_node_in_flight_keeps_the_branch():
    session = open_session(snapshot())
    draw(session, 4, 5, 6, 7)
    draw(session, 8, 4, 5, 6)
    # The verifier has not seen ids 5 to 8 and settled 8 by itself.
    assert session.apply(verdict(3, 4, 5, 6, 7, 8, seen=4))
    assert session.tree.held(1) == 3
    assert session.ask().token_ids == (*PROMPT, 4, 5, 6, 7, 8, 4, 5, 6)


def test_when_fewer_nodes_are_held_than_thought_the_branch_begins_anew():
    session = open_session(snapshot())
    draw(session, 4, 5, 6, 7)
    assert not session.apply(verdict(3, 4, head=1, seen=4, held=1))
    assert session.counts.num_restarts == 1
    message = draw(session, 5, 6, 7, 8)
    assert (message.base, message.parent, message.token_ids) == (4, 0, (5, 6, 7, 8))


def test_a_window_of_zero_stops_the_drawing_until_it_grows():
    session = open_session(snapshot())
    assert session.ask() is not None
    session.apply(verdict(3, 4, window=0))
    assert session.ask() is None
    session.apply(verdict(4, 5, window=8))
    assert session.ask() is not None


@pytest.mark.parametrize(("limit", "max_context"), [(5, None), (64, 5)])
def test_nothing_is_drafted_beyond_the_last_position_or_the_drafters_context(limit, max_context):
    session = open_session(snapshot(last_position=limit), max_context=max_context)
    assert session.ask().length == 2
    assert draw(session, 4, 5).token_ids == (4, 5)
    assert session.ask() is None


def test_a_text_longer_than_the_drafters_context_is_not_drafted():
    session = open_session(snapshot(tokens=tuple(range(8))), max_context=4)
    assert session.ask() is None
    session.apply(verdict(8, 1))
    assert session.ask() is None


def test_merged_verdicts_are_one_verdict():
    session = open_session(snapshot())
    draw(session, 4, 5, 6, 7)
    assert session.apply(verdict(3, 4, 5, 6, 7, 1, 2, 3, seen=4))
    assert session.ask().token_ids == (*PROMPT, 4, 5, 6, 7, 1, 2, 3)


def test_a_verdict_that_leaves_a_gap_is_a_fault():
    with pytest.raises(InternalFault, match="5"):
        open_session(snapshot()).apply(verdict(5, 1))


def test_tokens_drawn_for_a_text_that_was_torn_meanwhile_are_dropped():
    session = open_session(snapshot(next_length=2))
    ask = session.ask()
    session.apply(verdict(3, 7))
    assert session.take(ask, Drawn((4, 5))) is None
    assert session.ask().token_ids == (*PROMPT, 7)
    assert session.counts.num_drafted == 0


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.REJECTION])
def test_a_burst_that_the_text_contradicts_is_given_up_whole(mode):
    session = open_session(snapshot(mode))
    draw(session, 4)
    draw(session, 5)
    assert session.apply(verdict(3, 7))
    assert session.ask().token_ids == (*PROMPT, 7)
    assert session.ask().length == 4


def test_a_burst_overtaken_by_text_that_agrees_ships_only_what_is_still_open():
    session = open_session(snapshot(next_length=4))
    draw(session, 4)
    draw(session, 5)
    ask = session.ask()
    session.apply(verdict(3, 4))  # settled without us, as the burst would have it
    assert session.take(ask, Drawn((6,))) is None
    message = draw(session, 7)
    assert (message.base, message.parent, message.token_ids) == (4, 0, (5, 6, 7))


def test_a_source_with_nothing_to_say_says_so_once_and_is_asked_again_when_the_text_changes():
    session = open_session(snapshot())
    nothing = draw(session, ends=True)
    assert (nothing.base, nothing.token_ids) == (3, ())
    assert session.ask() is None
    assert session.counts.num_messages == 0
    session.apply(verdict(3, 4))
    assert session.ask() is not None


def test_a_source_that_ends_early_ships_what_it_has():
    session = open_session(snapshot())
    assert draw(session, 4, 5, ends=True).token_ids == (4, 5)
    assert session.ask() is not None


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
def test_nothing_is_drafted_behind_an_end_token(mode):
    session = open_session(snapshot(mode))
    assert draw(session, 4, END, 5, 6).token_ids == (4, END)
    assert session.ask() is None


def test_in_rejection_mode_an_end_token_does_not_cut_its_burst_short():
    session = open_session(snapshot(Mode.REJECTION))
    assert draw(session, 4) is None
    assert draw(session, END) is None
    assert draw(session, 5) is None
    assert draw(session, 6).token_ids == (4, END, 5, 6)


def test_in_rejection_mode_the_length_is_fixed_before_the_first_token():
    session = open_session(snapshot(Mode.REJECTION, next_length=4))
    draw(session, 4)
    session.apply(verdict(3, 4, length=1))
    assert session.ask().length == 3
    draw(session, 5, 6)
    assert draw(session, 7).token_ids == (5, 6, 7)
    assert session.ask().length == 1


def test_after_the_last_verdict_nothing_is_drawn():
    session = open_session(snapshot())
    ask = session.ask()
    session.apply(verdict(3, 4, finish=FinishReason.STOP))
    assert session.ask() is None
    assert session.take(ask, Drawn((4, 5, 6, 7))) is None


class Verifier:
    """The other side of the stream, as a tree and two slow wires."""

    def __init__(self, shot, rng):
        self.tree = DraftTree(shot.token_ids, merge=shot.mode is not Mode.REJECTION)
        self.tree.open_stream(1, shot.window)
        self.rng = rng
        self.window = shot.window
        self.drafts, self.verdicts = deque(), deque()

    def receive(self):
        draft = self.drafts.popleft()
        self.tree.graft(1, draft.base, draft.parent, draft.first_id, draft.token_ids)

    def settle(self, token_ids):
        base = self.tree.base
        self.tree.settle(token_ids)
        told = Verdict(
            base=base,
            token_ids=token_ids,
            head_node=self.tree.head_node(1),
            seen_id=self.tree.seen_id(1),
            held=self.tree.held(1),
            next_length=self.rng.randint(1, 4),
            window=self.window,
        )
        if self.verdicts and self.rng.random() < 0.3:  # unsent: merged
            older = self.verdicts.pop()
            told = Verdict(
                older.base,
                older.token_ids + told.token_ids,
                0,
                0,
                told.head_node,
                told.seen_id,
                told.held,
                told.next_length,
                told.window,
            )
        self.verdicts.append(told)


def branch(tree):
    return [node.token_id for node in tree.plan(tree.depth(1), 1)]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([Mode.GREEDY, Mode.REJECTION]), st.integers(1, 8))
def test_once_all_messages_arrived_both_trees_are_equal(seed, mode, window):
    rng = random.Random(seed)
    shot = snapshot(mode, window=window, last_position=10**6)
    session, verifier = open_session(shot), Verifier(shot, rng)
    outstanding = None

    def tokens(number):
        return tuple(rng.randrange(2) for _ in range(number))

    for _ in range(60):
        match rng.randrange(5):
            case 0 if outstanding is None:
                outstanding = session.ask()
            case 1 if outstanding is not None:
                drawn = Drawn(tokens(rng.randint(1, outstanding.length)), ends=rng.random() < 0.2)
                message, outstanding = session.take(outstanding, drawn), None
                if message is not None:
                    assert message.base == session.tree.base
                    verifier.drafts.append(message)
                assert session.tree.held(1) <= window
            case 2 if verifier.drafts:
                before = verifier.tree.held(1), verifier.drafts[0]
                verifier.receive()
                assert verifier.tree.held(1) <= window, before
            case 3:
                verifier.settle(tokens(rng.randint(1, 3)))
            case 4 if verifier.verdicts:
                assert session.apply(verifier.verdicts.popleft())
    while verifier.drafts:
        verifier.receive()
    verifier.settle(tokens(1))
    while verifier.verdicts:
        assert session.apply(verifier.verdicts.popleft())
    assert session.tree.token_ids == verifier.tree.token_ids
    assert branch(session.tree) == branch(verifier.tree)
    assert session.counts.num_restarts == 0


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_shrinking_window_costs_a_restart_at_most_and_the_trees_meet_again(seed):
    rng = random.Random(seed)
    shot = snapshot(window=8, last_position=10**6)
    session, verifier = open_session(shot), Verifier(shot, rng)
    for _ in range(80):
        match rng.randrange(5):
            case 0 if (ask := session.ask()) is not None:
                message = session.take(ask, Drawn(tuple(rng.randrange(2) for _ in range(ask.length))))
                if message is not None:
                    verifier.drafts.append(message)
            case 1 if verifier.drafts:
                verifier.receive()
            case 2:
                verifier.settle((rng.randrange(2),))
            case 3 if verifier.verdicts:
                session.apply(verifier.verdicts.popleft())
            case 4:
                verifier.window = rng.choice([0, 2, 8])
                verifier.tree.set_window(1, verifier.window)
    for _ in range(4):  # quiet rounds: everything arrives, text goes on
        while verifier.drafts:
            verifier.receive()
        verifier.settle((rng.randrange(2),))
        while verifier.verdicts:
            session.apply(verifier.verdicts.popleft())
    assert session.tree.token_ids == verifier.tree.token_ids
    assert session.tree.held(1) == verifier.tree.held(1)
