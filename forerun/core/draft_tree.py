"""The draft tree: everything drafters said that may still come true, hanging from the settled text.

The verifier keeps one tree a session, with a stream for every attached drafter. A drafter mirrors its own
stream with the same class. Positions are absolute; ids belong to a stream and only grow. Invariants:

- a node's ancestors below the head are owned by every stream that owns the node;
- `live` maps a stream's ids to nodes of the tree, `settled` to positions at or after its last acknowledged
  base;
- of nodes and of positions after that base a stream holds at most `window` together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from forerun.core.types import Law
from forerun.errors import InvalidRequest


@dataclass(slots=True, eq=False)
class Node:
    """One drafted token that continues its parent's path. Only the tree that made it changes it."""

    position: int  # settled length once this node is the head; its token stands at index position - 1
    token_id: int
    law: Law | None = None  # what the token was drawn from; None: look-up
    late: bool = False  # its message named an older settled length than the one at its arrival
    first: int = 0  # the stream that drafted it before any other did
    owners: set[int] = field(default_factory=set)  # streams that drafted it
    children: list[Node] = field(default_factory=list, repr=False)  # in order of arrival


@dataclass(slots=True)
class _Stream:
    window: int
    acknowledged: int  # highest base its drafts named
    seen_id: int = 0
    branch_base: int = -1  # base of the message that began the branch
    branch_id: int = 1  # first id of the branch; older ids have been given up
    live: dict[int, Node] = field(default_factory=dict)
    settled: dict[int, int] = field(default_factory=dict)
    promise: float = 0.5

    @property
    def room(self) -> int:
        undecided_there = sum(position > self.acknowledged for position in self.settled.values())
        return self.window - len(self.live) - undecided_there

    def acknowledge(self, base: int) -> None:
        """Forget settled ids from before `base`: no later message can name them as its parent."""
        if base > self.acknowledged:
            self.acknowledged = base
            self.settled = {i: p for i, p in self.settled.items() if p >= base}


class DraftTree:
    """Branches under the settled text of one session.

    With `merge` (greedy and coupled mode) equal paths of several streams are one path with several owners,
    and siblings are kept. Without it (rejection mode) each stream has one chain and the first child of a node
    stays, so that what is tested never depends on what another draft says.
    """

    def __init__(self, token_ids: Sequence[int], *, merge: bool) -> None:
        self.token_ids: list[int] = list(token_ids)
        self.merge = merge
        self._root = Node(len(self.token_ids), -1)
        self._streams: dict[int, _Stream] = {}
        self.num_nodes = 0  # below the head, all streams

    @property
    def base(self) -> int:
        """Settled length."""
        return len(self.token_ids)

    def open_stream(self, stream: int, window: int) -> None:
        """`stream` may hang at most `window` nodes; if it was open, what it had is gone."""
        self.close_stream(stream)
        self._streams[stream] = _Stream(window, self.base)

    def close_stream(self, stream: int) -> int:
        """The stream is forgotten, with the nodes that only it owned; returns their number.

        Unknown streams: 0.
        """
        if self._streams.pop(stream, None) is None:
            return 0
        return self._disown(stream)

    def set_window(self, stream: int, window: int) -> None:
        """From now on `stream` may hang at most `window` nodes; those there stay.

        Unknown streams: no effect.
        """
        if stream in self._streams:
            self._streams[stream].window = window

    def set_promise(self, stream: int, promise: float) -> None:
        """From now on a token of `stream` counts as accepted with probability `promise`. Unknown streams: no effect."""
        if stream in self._streams:
            self._streams[stream].promise = promise

    def graft(
        self,
        stream: int,
        base: int,
        parent: int,
        first_id: int,
        token_ids: Sequence[int],
        laws: Sequence[Law] = (),
    ) -> int:
        """The chain `token_ids` hangs where it still fits; returns how many nodes are new.

        `parent`: an id this stream sent earlier, or 0 for the settled text at `base`. Where the parent is
        settled the chain is walked over the text while it agrees. Dropped silently: what disagrees, what has
        an unknown parent, what exceeds the window, what had arrived before, anything of a stream that is
        not open. A parent 0 at a higher base than before begins the stream's branch anew; nodes it had are
        given up, except that without `merge` a first child of the head stays to be tested.

        Raises InvalidRequest (reason BAD_DRAFT), having changed nothing, for what no lateness explains: a
        base beyond the settled text, an id below 1, a parent that is not older than the chain, laws of
        another number.
        """
        self._check(base, parent, first_id, len(token_ids), len(laws))
        state = self._streams.get(stream)
        if state is None or base < state.acknowledged:
            return 0
        state.acknowledge(base)
        repeated = max(0, state.seen_id - first_id + 1)
        if repeated >= len(token_ids):
            return 0
        if repeated:
            parent = state.seen_id
        elif parent == 0 and base > state.branch_base:
            self._begin_branch(stream, state, base, first_id)
        state.seen_id = first_id + len(token_ids) - 1
        node = state.live.get(parent)
        position = base if parent == 0 else state.settled.get(parent)
        if node is None and position is None:
            return 0
        if node is None and position is not None:
            walked = self._walk(state, position, first_id + repeated, token_ids[repeated:])
            if walked is None:
                return 0
            node, repeated = self._root, repeated + walked
        chain = [
            (first_id + i, token_ids[i], laws[i] if laws else None) for i in range(repeated, len(token_ids))
        ]
        return self._hang(stream, node or self._root, chain, late=base < self.base)

    def plan(self, limit: int, stream: int | None = None) -> tuple[Node, ...]:
        """The chain worth checking now: at most `limit` nodes from the head down, parents first.

        With `merge` the child is followed that its streams, by what they promise, are least likely to be all
        wrong about, then the deepest, then the oldest; `stream` keeps to that stream's nodes. Without `merge` it
        is the stream's own chain, and none where no stream is chosen.
        """
        chain: list[Node] = []
        node: Node | None = None
        while len(chain) < limit:
            children = self.children(node, stream)
            if not children:
                break
            node = children[0] if len(children) == 1 else max(children, key=self._promise)
            chain.append(node)
        return tuple(chain)

    def children(self, node: Node | None, stream: int | None = None) -> tuple[Node, ...]:
        """Drafted continuations of `node` (None: of the head), oldest first; of `stream` alone if given.

        Without `merge` nothing is drafted for no stream: which one is tested must be chosen beforehand.
        """
        if stream is None and not self.merge:
            return ()
        children = (node or self._root).children
        return tuple(child for child in children if stream is None or stream in child.owners)

    def _promise(self, node: Node) -> tuple[float, int]:
        all_wrong = math.prod(1 - self._streams[number].promise for number in node.owners)
        return -all_wrong, _depth(node, None)

    def settle(self, token_ids: Sequence[int]) -> int:
        """The text is longer by `token_ids`; what agrees stays; returns how many nodes were torn."""
        before = self.num_nodes
        if not before:
            self.token_ids.extend(token_ids)
            self._root.position = self.base
            return 0
        passed: set[Node] = set()
        for token_id in token_ids:
            agreeing = [child for child in self._root.children if child.token_id == token_id]
            passed.update(agreeing)
            self._root.children = [below for child in agreeing for below in child.children]
            self.token_ids.append(token_id)
        self._root.position = self.base
        alive = set(_below(self._root))
        for state in self._streams.values():
            state.settled.update((i, node.position) for i, node in state.live.items() if node in passed)
            state.live = {i: node for i, node in state.live.items() if node in alive}
        self.num_nodes = len(alive)
        return before - len(passed) - len(alive)

    def head_node(self, stream: int) -> int:
        """The stream's own node that is the head now; 0: none."""
        state = self._streams.get(stream)
        if state is None:
            return 0
        return max((i for i, position in state.settled.items() if position == self.base), default=0)

    def seen_id(self, stream: int) -> int:
        """The highest of the stream's ids that had arrived."""
        state = self._streams.get(stream)
        return state.seen_id if state else 0

    def held(self, stream: int) -> int:
        """The stream's nodes below the head, those it gave up not counted."""
        state = self._streams.get(stream)
        return len(state.live) if state else 0

    def held_up_to(self, stream: int, node_id: int) -> int:
        """The stream's nodes below the head with ids up to `node_id`."""
        state = self._streams.get(stream)
        return sum(i <= node_id for i in state.live) if state else 0

    def agrees(self, stream: int, head_node: int, seen_id: int, held: int) -> bool:
        """Whether a verdict's account of `stream` is what this mirror expects, its tokens being settled here.

        Ids after `seen_id` are still under way and tell nothing; a verdict that has seen nothing of the
        branch speaks of one that was given up, and tells nothing either. False: drop the branch, begin anew
        with parent 0.
        """
        state = self._streams[stream]
        if seen_id < state.branch_id:
            return True
        own_head = self.head_node(stream)
        return (own_head if own_head <= seen_id else 0) == head_node and self.held_up_to(
            stream, seen_id
        ) == held

    def depth(self, stream: int | None = None) -> int:
        """Length of the longest path below the head; of `stream`'s nodes where it is given."""
        return _depth(self._root, stream)

    def drop_branch(self, stream: int) -> int:
        """The stream has no nodes and no head node here; its next draft has parent 0.

        Returns how many nodes went.
        """
        state = self._streams[stream]
        state.live, state.settled, state.branch_id = {}, {}, state.seen_id + 1
        return self._disown(stream)

    def _check(self, base: int, parent: int, first_id: int, num_tokens: int, num_laws: int) -> None:
        if not 0 <= base <= self.base:
            raise InvalidRequest(
                f"base {base} is not within the settled {self.base} tokens",
                reason="BAD_DRAFT",
                field="draft.base",
            )
        if first_id <= 0:
            raise InvalidRequest("node ids start at 1", reason="BAD_DRAFT", field="draft.first_id")
        if not 0 <= parent < first_id:
            raise InvalidRequest(
                f"parent {parent} is not older than node {first_id}",
                reason="BAD_DRAFT",
                field="draft.parent",
            )
        if num_laws not in {0, num_tokens}:
            raise InvalidRequest(
                f"{num_laws} laws for {num_tokens} tokens", reason="BAD_DRAFT", field="draft.laws"
            )

    def _begin_branch(self, stream: int, state: _Stream, base: int, first_id: int) -> None:
        # What is below the head's child goes, and the child's id is forgotten: it is tested, and no more.
        waiting = [] if self.merge else [c for c in self._root.children if stream in c.owners]
        self._disown(stream)  # also the waiting child of an earlier branch, which `live` no longer names
        for child in waiting:
            child.owners.add(stream)
            self._root.children.append(child)
        self.num_nodes += len(waiting)
        state.live, state.settled = {}, {}
        state.branch_base, state.branch_id = base, first_id

    def _walk(self, state: _Stream, position: int, first_id: int, token_ids: Sequence[int]) -> int | None:
        """Walk the settled text from `position`; return how many tokens lie on it, or None where it parts."""
        text = self.token_ids[position : position + len(token_ids)]
        room = state.room
        for i, settled_id in enumerate(text):
            if token_ids[i] != settled_id or i >= room:
                return None
            state.settled[first_id + i] = position + i + 1
        return len(text)

    def _hang(
        self, stream: int, node: Node, chain: Sequence[tuple[int, int, Law | None]], *, late: bool
    ) -> int:
        state = self._streams[stream]
        num_new = 0
        for node_id, token_id, law in chain[: max(0, state.room)]:
            if self.merge:
                child = next((c for c in node.children if c.token_id == token_id), None)
            elif any(stream in c.owners for c in node.children):
                break
            else:
                child = None
            if child is None:
                child = Node(node.position + 1, token_id, law, late, first=stream)
                node.children.append(child)
                num_new += 1
            child.owners.add(stream)
            state.live[node_id] = node = child
        self.num_nodes += num_new
        return num_new

    def _disown(self, stream: int) -> int:
        before = self.num_nodes
        for node in (self._root, *_below(self._root)):
            for child in node.children:
                child.owners.discard(stream)
            node.children = [child for child in node.children if child.owners]
        self.num_nodes = sum(1 for _ in _below(self._root))
        return before - self.num_nodes


def _below(root: Node) -> Iterator[Node]:
    pending = [root]
    while pending:
        children = pending.pop().children
        yield from children
        pending.extend(children)


def _depth(root: Node, stream: int | None) -> int:
    depth = -1
    level = [root]
    while level:
        depth += 1
        level = [c for node in level for c in node.children if stream is None or stream in c.owners]
    return depth
