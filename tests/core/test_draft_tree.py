"""The draft tree against an oracle that keeps every path as a plain list and compares prefixes."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from forerun.core.draft_tree import DraftTree, Node
from forerun.core.types import Law
from forerun.errors import InvalidRequest

STREAMS = (1, 2, 3)
tokens = st.integers(0, 1)

Path = tuple[int, ...]


class OracleStream:
    def __init__(self, window: int, base: int) -> None:
        self.window, self.ack, self.seen, self.branch_base = window, base, 0, -1
        self.paths: dict[int, Path] = {}  # every id that a later message may name
        self.waiting: Path | None = None  # without merging: a first child that was given up


class Oracle:
    """What the tree must hold, by definition: the paths that continue the settled text."""

    def __init__(self, text: list[int], *, merge: bool) -> None:
        self.text, self.merge = tuple(text), merge
        self.streams: dict[int, OracleStream] = {}
        self.late: dict[tuple[int, Path], bool] = {}

    def agrees(self, path: Path) -> bool:
        shared = min(len(path), len(self.text))
        return path[:shared] == self.text[:shared]

    def live(self, path: Path | None) -> bool:
        return path is not None and len(path) > len(self.text) and self.agrees(path)

    def live_paths(self, stream: int) -> set[Path]:
        state = self.streams[stream]
        return {path for path in [*state.paths.values(), state.waiting] if self.live(path)}

    def owners(self) -> dict[Path, set[int]]:
        owners: dict[Path, set[int]] = {}
        for stream in self.streams:
            for path in self.live_paths(stream):
                owners.setdefault(path, set()).add(stream)
        return owners

    def num_nodes(self) -> int:
        return len(self.owners()) if self.merge else sum(len(self.live_paths(s)) for s in self.streams)

    def room(self, state: OracleStream) -> int:
        return state.window - sum(len(path) > state.ack for path in state.paths.values())

    def graft(self, stream: int, base: int, parent: int, first_id: int, chain: list[int]) -> None:
        state = self.streams.get(stream)
        if state is None or base < state.ack:
            return
        state.ack = base
        state.paths = {i: p for i, p in state.paths.items() if len(p) >= state.ack}
        fresh = [(first_id + i, token) for i, token in enumerate(chain) if first_id + i > state.seen]
        if not fresh:
            return
        if len(fresh) < len(chain):
            parent = state.seen
        elif parent == 0 and base > state.branch_base:
            self.begin_branch(stream, base)
        state.seen = fresh[-1][0]
        path = self.text[:base] if parent == 0 else state.paths.get(parent)
        for node_id, token in fresh if path is not None else ():
            path = (*path, token)
            if not self.agrees(path) or self.room(state) <= 0:
                return
            siblings = {other for other in self.live_paths(stream) if other[:-1] == path[:-1]}
            if self.live(path) and not self.merge and siblings:
                return
            if self.live(path):
                known = self.owners() if self.merge else self.live_paths(stream)
                if path not in known:
                    self.late[0 if self.merge else stream, path] = base < len(self.text)
            state.paths[node_id] = path

    def begin_branch(self, stream: int, base: int) -> None:
        state = self.streams[stream]
        first = [path for path in self.live_paths(stream) if len(path) == len(self.text) + 1]
        state.waiting = None if self.merge or not first else first[0]
        state.paths, state.branch_base = {}, base

    def settle(self, chain: list[int]) -> None:
        self.text = (*self.text, *chain)
        for state in self.streams.values():
            state.paths = {i: path for i, path in state.paths.items() if self.agrees(path)}
            state.waiting = state.waiting if self.live(state.waiting) else None

    def head_node(self, stream: int) -> int:
        paths = self.streams[stream].paths
        return max((i for i, path in paths.items() if path == self.text), default=0)

    def held(self, stream: int, up_to: int = 10**9) -> int:
        return sum(self.live(path) and i <= up_to for i, path in self.streams[stream].paths.items())


def below(tree: DraftTree, stream: int | None) -> dict[Path, Node]:
    found: dict[Path, Node] = {}
    pending: list[tuple[Path, Node | None]] = [(tuple(tree.token_ids), None)]
    while pending:
        path, node = pending.pop()
        for child in tree.children(node, stream):
            found[(*path, child.token_id)] = child
            pending.append(((*path, child.token_id), child))
    return found


class TreeAgainstPaths(RuleBasedStateMachine):
    merge = True

    @initialize(text=st.lists(tokens, max_size=3), window=st.integers(0, 6))
    def begin(self, text, window):
        self.tree = DraftTree(text, merge=self.merge)
        self.oracle = Oracle(text, merge=self.merge)
        self.last: dict[int, int] = {}
        self.messages: list[tuple] = []
        self.open(1, window)

    @rule(stream=st.sampled_from(STREAMS), window=st.integers(0, 6))
    def open(self, stream, window):
        self.tree.open_stream(stream, window)
        self.oracle.streams[stream] = OracleStream(window, len(self.oracle.text))
        self.last[stream] = 0

    @rule(stream=st.sampled_from(STREAMS))
    def close(self, stream):
        before = self.oracle.num_nodes()
        self.oracle.streams.pop(stream, None)
        assert self.tree.close_stream(stream) == before - self.oracle.num_nodes()

    @rule(stream=st.sampled_from(STREAMS), window=st.integers(0, 6))
    def resize(self, stream, window):
        self.tree.set_window(stream, window)
        if stream in self.oracle.streams:
            self.oracle.streams[stream].window = window

    @rule(
        stream=st.sampled_from(STREAMS),
        back=st.integers(0, 4),
        ordered=st.integers(0, 9),
        parent=st.integers(0, 6),
        gap=st.sampled_from([1, 1, 1, 2, 0, -2]),
        chain=st.lists(tokens, max_size=5),
    )
    def draft(self, stream, back, ordered, parent, gap, chain):
        base = max(0, self.tree.base - back)
        if ordered and stream in self.oracle.streams:  # as a stream delivers: bases never fall
            base = max(base, self.oracle.streams[stream].ack)
        first_id = max(1, self.last.get(stream, 0) + gap)
        parent = max(0, first_id - parent) if parent else 0  # 0, or one of the last ids, or one never sent
        self.deliver((stream, base, parent, first_id, chain))

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def repeat(self, data):
        self.deliver(data.draw(st.sampled_from(self.messages)))

    def deliver(self, message):
        stream, _, parent, first_id, chain = message
        if parent >= first_id:
            return
        self.messages = [*self.messages[-3:], message]
        self.last[stream] = max(self.last.get(stream, 0), first_id + len(chain) - 1)
        before = set(below(self.tree, None) if self.merge else below(self.tree, stream))
        new = self.tree.graft(*message)
        after = set(below(self.tree, None) if self.merge else below(self.tree, stream))
        self.oracle.graft(*message)
        assert new >= len(after - before)
        state = (below(self.tree, None), self.tree.num_nodes)
        assert self.tree.graft(*message) == 0
        assert (below(self.tree, None), self.tree.num_nodes) == state

    @rule(chain=st.lists(tokens, max_size=3))
    def settle(self, chain):
        self.settled(chain)

    @rule(limit=st.integers(1, 5), more=st.lists(tokens, max_size=1))
    def settle_along_a_plan(self, limit, more):
        stream = None if self.merge else next(iter(self.oracle.streams), None)
        self.settled([*(node.token_id for node in self.tree.plan(limit, stream)), *more])

    def settled(self, chain):
        before = self.tree.num_nodes
        text = tuple(self.tree.token_ids)
        torn = self.tree.settle(chain)
        on_the_way = [(*text, *chain[: i + 1]) for i in range(len(chain))]
        if self.merge:
            passed = sum(path in self.oracle.owners() for path in on_the_way)
        else:
            passed = sum(p in self.oracle.live_paths(s) for s in self.oracle.streams for p in on_the_way)
        self.oracle.settle(chain)
        assert torn == before - passed - self.tree.num_nodes

    @invariant()
    def holds_exactly_the_paths_that_continue_the_text(self):
        assert self.tree.token_ids == list(self.oracle.text)
        assert self.tree.base == len(self.oracle.text)
        assert self.tree.num_nodes == self.oracle.num_nodes()
        owners = self.oracle.owners()
        for stream in self.oracle.streams:
            found = below(self.tree, stream)
            assert set(found) == {path for path, who in owners.items() if stream in who}
            for path, node in found.items():
                assert node.position == len(path)
                assert node.late == self.oracle.late[0 if self.merge else stream, path]
                if self.merge:
                    assert node.owners == owners[path]
        if self.merge:
            assert set(below(self.tree, None)) == set(owners)

    @invariant()
    def tells_each_stream_what_it_holds(self):
        for stream in STREAMS:
            if stream not in self.oracle.streams:
                assert (self.tree.held(stream), self.tree.head_node(stream), self.tree.seen_id(stream)) == (
                    0,
                    0,
                    0,
                )
                continue
            assert self.tree.held(stream) == self.oracle.held(stream)
            assert self.tree.head_node(stream) == self.oracle.head_node(stream)
            assert self.tree.seen_id(stream) == self.oracle.streams[stream].seen
            for up_to in (0, 2, self.last[stream] - 1):
                assert self.tree.held_up_to(stream, up_to) == self.oracle.held(stream, up_to)
            depths = [len(path) - self.tree.base for path in self.oracle.live_paths(stream)]
            assert self.tree.depth(stream) == max(depths, default=0)

    @invariant()
    def plans_are_chains_from_the_head(self):
        for stream in (None, *STREAMS):
            found = below(self.tree, stream)
            for limit in (0, 2, 9):
                plan = self.tree.plan(limit, stream)
                path = tuple(self.tree.token_ids)
                for node in plan:
                    path = (*path, node.token_id)
                    assert found[path] is node
                assert len(plan) <= limit
                if len(plan) < limit:
                    assert not any(longer[:-1] == path for longer in found)

    @invariant()
    def memory_is_bounded_by_the_windows(self):
        for state in self.tree._streams.values():
            undecided = len(state.live) + sum(p > state.acknowledged for p in state.settled.values())
            assert undecided <= 6
            assert all(p >= state.acknowledged for p in state.settled.values())


class ChainsAgainstPaths(TreeAgainstPaths):
    merge = False

    @invariant()
    def every_stream_has_one_chain(self):
        for stream in self.oracle.streams:
            for node in (None, *below(self.tree, stream).values()):
                assert len(self.tree.children(node, stream)) <= 1
                assert all(child.owners == {stream} for child in self.tree.children(node, stream))
        assert self.tree.children(None) == ()
        assert self.tree.plan(5) == ()


TestTreeAgainstPaths = TreeAgainstPaths.TestCase
TestTreeAgainstPaths.settings = settings(max_examples=150, stateful_step_count=30)
TestChainsAgainstPaths = ChainsAgainstPaths.TestCase
TestChainsAgainstPaths.settings = settings(max_examples=150, stateful_step_count=30)


def opened(*streams: int, merge: bool = True, window: int = 8) -> DraftTree:
    tree = DraftTree([7], merge=merge)
    for stream in streams:
        tree.open_stream(stream, window)
    return tree


def token_ids(nodes) -> list[int]:
    return [node.token_id for node in nodes]


@pytest.mark.parametrize("merge", [True, False])
class TestDrafts:
    def test_a_late_draft_is_walked_over_the_text_and_its_rest_hangs_from_the_head(self, merge):
        tree = opened(1, merge=merge)
        tree.settle([1, 2])
        assert tree.graft(1, 1, 0, 1, [1, 2, 3, 4]) == 2
        plan = tree.plan(8, 1)
        assert token_ids(plan) == [3, 4]
        assert [node.position for node in plan] == [4, 5]
        assert all(node.late for node in plan)
        assert (tree.head_node(1), tree.seen_id(1), tree.held(1)) == (2, 4, 2)

    def test_a_late_draft_that_disagrees_is_dropped_silently(self, merge):
        tree = opened(1, merge=merge)
        tree.settle([1, 2])
        assert tree.graft(1, 1, 0, 1, [1, 3, 3]) == 0
        assert (tree.num_nodes, tree.head_node(1), tree.seen_id(1)) == (0, 0, 3)

    def test_a_parent_that_has_been_settled_is_walked_from(self, merge):
        tree = opened(1, merge=merge)
        tree.graft(1, 1, 0, 1, [1, 2])
        tree.settle([1, 2, 3])
        assert tree.graft(1, 1, 2, 3, [3, 4]) == 1
        assert token_ids(tree.plan(8, 1)) == [4]

    def test_the_head_node_itself_can_be_a_parent(self, merge):
        tree = opened(1, merge=merge)
        tree.graft(1, 1, 0, 1, [1])
        tree.settle([1])
        assert tree.head_node(1) == 1
        assert tree.graft(1, 2, 1, 2, [2]) == 1
        assert not tree.plan(1, 1)[0].late

    def test_settled_nodes_before_the_acknowledged_base_are_forgotten(self, merge):
        tree = opened(1, merge=merge)
        tree.graft(1, 1, 0, 1, [1, 2])
        tree.settle([1, 2])
        tree.graft(1, 3, 2, 3, [3])
        assert tree.graft(1, 3, 1, 4, [2, 3, 4]) == 0

    def test_a_draft_beyond_the_window_is_dropped(self, merge):
        tree = opened(1, merge=merge, window=3)
        assert tree.graft(1, 1, 0, 1, [1, 2, 3, 4, 5]) == 3
        assert tree.graft(1, 1, 5, 6, [6]) == 0
        assert (tree.held(1), tree.seen_id(1)) == (3, 6)

    def test_a_window_of_0_takes_nothing(self, merge):
        tree = opened(1, merge=merge, window=0)
        assert tree.graft(1, 1, 0, 1, [1]) == 0
        tree.set_window(1, 1)
        assert tree.graft(1, 1, 0, 2, [1]) == 1

    def test_an_unread_verdict_cannot_make_the_memory_grow(self, merge):
        tree = opened(1, merge=merge, window=4)
        for i in range(1, 100):
            tree.graft(1, 1, i - 1, i, [5])
            tree.settle([5])
        assert len(tree._streams[1].settled) <= 5

    def test_a_draft_of_a_closed_stream_is_dropped(self, merge):
        tree = opened(1, merge=merge)
        tree.graft(1, 1, 0, 1, [1, 2])
        assert tree.close_stream(1) == 2
        assert tree.close_stream(1) == 0
        assert tree.graft(1, 1, 2, 3, [3]) == 0

    @pytest.mark.parametrize(
        ("base", "parent", "first_id", "num_laws"),
        [
            (2, 0, 1, 0),
            (-1, 0, 1, 0),
            (1, 0, 0, 0),
            (1, 0, -3, 0),
            (1, 1, 1, 0),
            (1, 5, 2, 0),
            (1, -1, 1, 0),
            (1, 0, 1, 1),
        ],
    )
    def test_what_no_lateness_explains_is_refused_and_changes_nothing(
        self, merge, base, parent, first_id, num_laws
    ):
        tree = opened(1, merge=merge)
        with pytest.raises(InvalidRequest) as caught:
            tree.graft(1, base, parent, first_id, [1, 2], [Law(np.array([1]), np.ones(1))] * num_laws)
        assert caught.value.reason == "BAD_DRAFT"
        assert (tree.num_nodes, tree.seen_id(1)) == (0, 0)

    def test_a_reopened_stream_starts_with_nothing(self, merge):
        tree = opened(1, merge=merge)
        tree.graft(1, 1, 0, 1, [1, 2])
        tree.open_stream(1, 8)
        assert (tree.num_nodes, tree.held(1), tree.seen_id(1)) == (0, 0, 0)


class TestMerging:
    def test_equal_paths_of_several_streams_are_one_path_with_several_owners(self):
        tree = opened(1, 2)
        assert tree.graft(1, 1, 0, 1, [1, 2, 3]) == 3
        assert tree.graft(2, 1, 0, 1, [1, 2, 4]) == 1
        assert tree.num_nodes == 4
        assert [node.owners for node in tree.plan(2)] == [{1, 2}, {1, 2}]
        assert tree.close_stream(1) == 1
        assert token_ids(tree.plan(8)) == [1, 2, 4]

    def test_the_plan_follows_agreement_then_depth_then_age(self):
        tree = opened(1, 2, 3)
        tree.graft(1, 1, 0, 1, [1])
        tree.graft(2, 1, 0, 1, [2, 2, 2])
        assert token_ids(tree.plan(8)) == [2, 2, 2]
        tree.graft(3, 1, 0, 1, [1])
        assert token_ids(tree.plan(8)) == [1]
        assert token_ids(tree.plan(8, 2)) == [2, 2, 2]

    def test_the_plan_follows_what_is_least_likely_to_be_all_wrong(self):
        tree = opened(1, 2, 3)
        tree.graft(1, 1, 0, 1, [1])
        tree.graft(2, 1, 0, 1, [2, 2, 2])
        tree.set_promise(1, 0.6)
        tree.set_promise(2, 0.4)
        assert token_ids(tree.plan(8)) == [1]
        tree.graft(3, 1, 0, 1, [2])
        tree.set_promise(3, 0.4)  # together wrong in 0.36 of the cases, stream 1 in 0.4
        assert token_ids(tree.plan(8)) == [2, 2, 2]

    def test_a_node_remembers_who_drafted_it_before_the_others(self):
        tree = opened(1, 2)
        tree.graft(2, 1, 0, 1, [1])
        tree.graft(1, 1, 0, 1, [1, 3])
        assert [node.first for node in tree.plan(8)] == [2, 1]

    def test_siblings_of_one_base_are_kept(self):
        tree = opened(1)
        tree.graft(1, 1, 0, 1, [1, 2])
        tree.graft(1, 1, 0, 3, [3, 4])
        tree.graft(1, 1, 1, 5, [5])
        assert (tree.num_nodes, tree.held(1), tree.depth()) == (5, 5, 2)

    def test_a_branch_begun_anew_replaces_the_streams_own_nodes_only(self):
        tree = opened(1, 2)
        tree.graft(1, 1, 0, 1, [5, 1, 2])
        tree.graft(2, 1, 0, 1, [5, 1])
        tree.settle([5])
        assert tree.graft(1, 2, 0, 4, [3]) == 1
        assert (tree.held(1), tree.held(2), tree.num_nodes) == (1, 1, 2)


class TestChains:
    def test_streams_never_merge(self):
        tree = opened(1, 2, merge=False)
        tree.graft(1, 1, 0, 1, [1, 2])
        assert tree.graft(2, 1, 0, 1, [1, 2]) == 2
        assert tree.num_nodes == 4
        tree.settle([1])
        assert (tree.head_node(1), tree.head_node(2), tree.held(1), tree.held(2)) == (1, 1, 1, 1)

    def test_the_first_child_of_a_node_stays(self):
        tree = opened(1, merge=False)
        tree.graft(1, 1, 0, 1, [1, 2])
        assert tree.graft(1, 1, 0, 3, [3]) == 0
        assert tree.graft(1, 1, 1, 4, [4]) == 0
        assert token_ids(tree.plan(8, 1)) == [1, 2]

    def test_a_branch_begun_anew_leaves_the_child_of_the_head_to_be_tested(self):
        tree = opened(1, merge=False)
        tree.graft(1, 1, 0, 1, [5, 1, 2])
        tree.settle([5])
        assert tree.graft(1, 2, 0, 4, [3, 3]) == 0
        assert token_ids(tree.plan(8, 1)) == [1]
        assert (tree.held(1), tree.head_node(1), tree.seen_id(1)) == (0, 0, 5)
        tree.settle([1])
        assert (tree.held(1), tree.head_node(1)) == (0, 0)
        assert tree.graft(1, 3, 0, 6, [4]) == 1

    def test_laws_travel_with_their_tokens(self):
        laws = [Law(np.array([t]), np.ones(1)) for t in (1, 2, 3)]
        tree = opened(1, merge=False)
        tree.settle([1])
        tree.graft(1, 1, 0, 1, [1, 2, 3], laws)
        assert [node.law for node in tree.plan(8, 1)] == laws[1:]


def test_a_branch_begun_anew_twice_leaves_one_waiting_child() -> None:
    tree = DraftTree([1, 2, 3], merge=False)
    tree.open_stream(1, 32)
    tree.graft(1, 3, 0, 1, [7, 8, 9])
    tree.settle([7])
    tree.settle([8])
    tree.graft(1, 4, 0, 4, [8, 5])
    tree.graft(1, 5, 0, 6, [6])
    assert [child.token_id for child in tree.children(None, 1)] == [9]
