"""Drafter and verifier replayed over two ordered queues: whatever the delays, their trees become equal."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.draft_tree import DraftTree, Node
from forerun.core.types import DraftMessage, Verdict

STREAM = 1
Path = tuple[int, ...]


def nodes_by_id(tree: DraftTree) -> dict[int, Path]:
    """The stream's ids and the paths they stand for, below the head and at it."""
    paths: dict[int, Path] = {}
    pending: list[tuple[Path, Node | None]] = [(tuple(tree.token_ids), None)]
    of_node = {id(node): node_id for node_id, node in tree._streams[STREAM].live.items()}
    while pending:
        path, node = pending.pop()
        for child in tree.children(node, STREAM):
            pending.append(((*path, child.token_id), child))
            if id(child) in of_node:
                paths[of_node[id(child)]] = (*path, child.token_id)
    if tree.head_node(STREAM):
        paths[tree.head_node(STREAM)] = tuple(tree.token_ids)
    return paths


@dataclass
class Drafter:
    """Mirrors its own stream and follows the restart rule."""

    tree: DraftTree
    outbox: deque[DraftMessage] = field(default_factory=deque)
    next_id: int = 1
    num_restarts: int = 0

    def tip(self) -> int:
        live = self.tree._streams[STREAM].live
        return max(live) if live else self.tree.head_node(STREAM)

    def draft(self, chain: list[int], *, obey: bool = True) -> None:
        if obey:
            chain = chain[: max(0, self.tree._streams[STREAM].window - self.tree.held(STREAM))]
        if not chain:
            return
        message = DraftMessage(self.tree.base, self.tip(), self.next_id, tuple(chain))
        self.next_id += len(chain)
        self.tree.graft(STREAM, message.base, message.parent, message.first_id, message.token_ids)
        self.outbox.append(message)

    def hear(self, verdict: Verdict) -> None:
        assert verdict.base == self.tree.base
        self.tree.settle(verdict.token_ids)
        self.tree.set_window(STREAM, verdict.window)
        if not self.tree.agrees(STREAM, verdict.head_node, verdict.seen_id, verdict.held):
            self.tree.drop_branch(STREAM)
            self.num_restarts += 1


@dataclass
class Verifier:
    """Settles, and tells the stream about it; unread verdicts may be merged."""

    tree: DraftTree
    window: int
    outbox: deque[Verdict] = field(default_factory=deque)

    def receive(self, message: DraftMessage) -> None:
        self.tree.graft(STREAM, message.base, message.parent, message.first_id, message.token_ids)

    def settle(self, agree: int, more: list[int]) -> None:
        chain = [*(node.token_id for node in self.tree.plan(agree, STREAM)), *more]
        if not chain:
            return
        base = self.tree.base
        self.tree.settle(chain)
        self.outbox.append(self.verdict(base, tuple(chain)))

    def verdict(self, base: int, token_ids: Path) -> Verdict:
        return Verdict(
            base,
            token_ids,
            head_node=self.tree.head_node(STREAM),
            seen_id=self.tree.seen_id(STREAM),
            held=self.tree.held(STREAM),
            window=self.window,
        )

    def merge_unread(self) -> None:
        if len(self.outbox) > 1:
            tokens = tuple(t for verdict in self.outbox for t in verdict.token_ids)
            self.outbox = deque([self.merged(self.outbox[0].base, tokens, self.outbox[-1])])

    @staticmethod
    def merged(base: int, tokens: Path, last: Verdict) -> Verdict:
        return Verdict(
            base, tokens, head_node=last.head_node, seen_id=last.seen_id, held=last.held, window=last.window
        )

    def resize(self, window: int) -> None:
        self.window = window
        self.tree.set_window(STREAM, window)


class Session:
    def __init__(self, *, merge: bool, window: int = 6, text: tuple[int, ...] = (0,)) -> None:
        self.drafter = Drafter(DraftTree(text, merge=merge))
        self.verifier = Verifier(DraftTree(text, merge=merge), window)
        for tree in (self.drafter.tree, self.verifier.tree):
            tree.open_stream(STREAM, window)

    def deliver_draft(self) -> None:
        if self.drafter.outbox:
            self.verifier.receive(self.drafter.outbox.popleft())

    def deliver_verdict(self) -> None:
        if self.verifier.outbox:
            self.drafter.hear(self.verifier.outbox.popleft())

    def drain(self) -> None:
        while self.drafter.outbox or self.verifier.outbox:
            self.deliver_draft()
            self.deliver_verdict()

    def equal(self) -> bool:
        ours, theirs = self.drafter.tree, self.verifier.tree
        return ours.token_ids == theirs.token_ids and nodes_by_id(ours) == nodes_by_id(theirs)

    def heal(self) -> None:
        """One settled token, heard; then the drafter drafts one token more, received."""
        self.verifier.settle(0, [2])
        self.drain()
        self.drafter.draft([1])
        self.drain()


tokens = st.lists(st.integers(0, 1), min_size=1, max_size=4)
obedient = st.one_of(
    st.tuples(st.just("draft"), tokens),
    st.tuples(st.just("deliver draft"), st.none()),
    st.tuples(st.just("settle"), st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), max_size=2))),
    st.tuples(st.just("deliver verdict"), st.none()),
    st.tuples(st.just("merge unread"), st.none()),
)
unruly = st.one_of(
    obedient,
    st.tuples(st.just("overdraft"), st.lists(st.integers(0, 1), min_size=5, max_size=9)),
    st.tuples(st.just("resize"), st.integers(0, 6)),
    st.tuples(st.just("repeat"), st.none()),
    st.tuples(st.just("lose"), st.none()),
)


def play(session: Session, steps) -> None:
    drafter, verifier = session.drafter, session.verifier
    for what, detail in steps:
        match what:
            case "draft":
                drafter.draft(detail)
            case "overdraft":
                drafter.draft(detail, obey=False)
            case "deliver draft":
                session.deliver_draft()
            case "settle":
                verifier.settle(*detail)
            case "deliver verdict":
                session.deliver_verdict()
            case "merge unread":
                verifier.merge_unread()
            case "resize":
                verifier.resize(detail)
            case "repeat":
                if drafter.outbox:
                    drafter.outbox.appendleft(drafter.outbox[0])
            case "lose":
                if drafter.outbox:
                    drafter.outbox.popleft()


@pytest.mark.parametrize("merge", [True, False])
class TestReplay:
    @settings(max_examples=400)
    @given(steps=st.lists(obedient, max_size=60))
    def test_once_messages_drain_both_trees_are_equal_and_nothing_was_restarted(self, merge, steps):
        session = Session(merge=merge)
        play(session, steps)
        session.drain()
        assert session.equal()
        assert session.drafter.num_restarts == 0
        verdict = session.verifier.verdict(session.verifier.tree.base, ())
        assert session.drafter.tree.agrees(STREAM, verdict.head_node, verdict.seen_id, verdict.held)

    @settings(max_examples=400)
    @given(steps=st.lists(unruly, max_size=60))
    def test_lost_doubled_and_oversized_messages_and_resized_windows_heal(self, merge, steps):
        session = Session(merge=merge)
        play(session, steps)
        session.verifier.resize(6)
        session.drain()
        session.heal()
        session.heal()
        assert session.equal()

    def test_an_overflow_costs_one_restart_however_many_verdicts_are_under_way(self, merge):
        session = Session(merge=merge, window=6)
        session.drafter.draft([1] * 6)
        session.verifier.resize(5)  # which the drafter hears too late
        session.deliver_draft()
        for _ in range(4):  # four verdicts, each holding what is left of the old branch
            session.verifier.settle(1, [])
        for _ in range(4):
            session.deliver_verdict()
            session.drafter.draft([0])
        assert session.drafter.num_restarts == 1


def test_in_rejection_mode_a_refused_restart_heals_within_the_next_settle():
    session = Session(merge=False, window=4)
    session.drafter.draft([1, 1, 1, 1])
    session.verifier.resize(3)
    session.deliver_draft()
    session.verifier.settle(1, [])
    session.verifier.resize(4)
    session.drain()
    assert session.drafter.num_restarts == 1
    session.drafter.draft([0, 0])
    session.drain()
    # The old first child stays to be tested, so the new chain was refused.
    waiting = session.verifier.tree.children(None, STREAM)
    assert [node.token_id for node in waiting] == [1]
    assert not session.equal()
    session.verifier.settle(1, [])  # it is tested, and even accepted
    session.drain()
    assert session.equal()
    session.drafter.draft([1, 0])
    session.drain()
    assert session.equal()
    assert session.verifier.tree.held(STREAM) == 2


def test_in_greedy_mode_a_restart_replaces_the_old_branch_at_once():
    session = Session(merge=True, window=4)
    session.drafter.draft([1, 1, 1, 1])
    session.verifier.resize(3)
    session.deliver_draft()
    session.verifier.settle(1, [])
    session.verifier.resize(4)
    session.drain()
    assert session.drafter.num_restarts == 1
    session.drafter.draft([0, 0])
    session.drain()
    assert session.equal()
    assert session.verifier.tree.held(STREAM) == 2


def test_a_drafter_far_behind_never_restarts_for_lateness():
    session = Session(merge=True, window=6)
    for _ in range(20):
        session.drafter.draft([1, 1])
        session.verifier.settle(0, [1])
    session.drain()
    assert session.equal()
    assert session.drafter.num_restarts == 0
