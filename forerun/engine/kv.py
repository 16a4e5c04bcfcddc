"""Who holds which block of the KV pool. Bookkeeping only: no tensors.

A block holds 16 positions. A session has a table of blocks; rollback is a cut of its length. A full block is known
by its content, (the content before it, its 16 tokens), compared token by token; equal prefixes share blocks, and a
block nobody holds stays reusable until room is needed, least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.engine.interface import PoolFullError, Segment

BLOCK = 16
_ROOT = 0  # the content before the first block


@dataclass(slots=True)
class _Block:
    refs: int = 0
    content: tuple[int, tuple[int, ...]] | None = None  # None: not addressable (partial, or being rewritten)
    name: int = _ROOT  # of this content; never used twice, so a forgotten parent's children are never found


@dataclass(slots=True)
class _Session:
    token_ids: list[int] = field(default_factory=list)  # exactly the positions that have KV
    blocks: list[int] = field(default_factory=list)


class KvPool:
    """The blocks of one pool and the sessions that hold them."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: OrderedDict[int, None] = OrderedDict()  # addressable, held by nobody; oldest first
        self._by_content: dict[tuple[int, tuple[int, ...]], int] = {}
        self._sessions: dict[str, _Session] = {}
        self._last_name = _ROOT

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._blocks)

    @property
    def num_held(self) -> int:
        """Blocks that some session holds."""
        return len(self._blocks) - len(self._free) - len(self._idle)

    @property
    def num_idle(self) -> int:
        """Blocks held by nobody that still serve equal prefixes."""
        return len(self._idle)

    @property
    def session_ids(self) -> tuple[str, ...]:
        """Sessions that are open."""
        return tuple(self._sessions)

    def length(self, session_id: str) -> int:
        """Positions of the session that have KV. KeyError for an unknown one."""
        return len(self._sessions[session_id].token_ids)

    def table(self, session_id: str) -> list[int]:
        """The session's blocks in order of position."""
        return self._sessions[session_id].blocks

    def open(self, session_id: str, token_ids: Sequence[int]) -> int:
        """Make a session known; return how many leading positions (a multiple of 16) it found in the pool."""
        self.close(session_id)
        session = _Session()
        name = _ROOT
        for start in range(0, (len(token_ids) - 1) // BLOCK * BLOCK, BLOCK):
            tokens = tuple(map(int, token_ids[start : start + BLOCK]))
            index = self._by_content.get((name, tokens))
            if index is None:
                break
            self._hold(index)
            session.blocks.append(index)
            session.token_ids.extend(tokens)
            name = self._blocks[index].name
        self._sessions[session_id] = session
        return len(session.token_ids)

    def close(self, session_id: str) -> None:
        """Forget a session. Its full blocks stay idle, the deepest the first to go."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._drop(session, 0)

    def reserve(self, segments: Sequence[Segment]) -> list[tuple[int, int]]:
        """Cut each session to its segment's start and give it blocks to write the segment's rows into.

        Returns copies (from block, to block) to make before writing. Raises PoolFullError before anything changed;
        KeyError for an unknown session, ValueError for a start beyond its length or two segments of one session.
        """
        self._check(segments)
        copies: list[tuple[int, int]] = []
        for segment in segments:
            session = self._sessions[segment.session_id]
            self._drop(session, -(-segment.start // BLOCK))
            del session.token_ids[segment.start :]
        for segment in segments:
            session = self._sessions[segment.session_id]
            if segment.start % BLOCK and len(segment.token_ids):
                self._own_last(session, copies)
            while len(session.blocks) * BLOCK < segment.start + len(segment.token_ids):
                session.blocks.append(self._take())
        return copies

    def commit(self, segment: Segment) -> None:
        """The segment's rows are written: its session is longer by them, its full blocks serve equal prefixes."""
        session = self._sessions[segment.session_id]
        session.token_ids.extend(map(int, segment.token_ids))
        for index in range(segment.start // BLOCK, len(session.token_ids) // BLOCK):
            self._address(session, index)

    def _check(self, segments: Sequence[Segment]) -> None:
        room = len(self._free) + len(self._idle)
        seen = set()
        for segment in segments:
            session = self._sessions[segment.session_id]
            if segment.session_id in seen:
                raise ValueError(f"two segments of session {segment.session_id} in one pass")
            if not 0 <= segment.start <= len(session.token_ids):
                raise ValueError(
                    f"start {segment.start} of a session that holds {len(session.token_ids)} positions"
                )
            seen.add(segment.session_id)
            room += sum(self._blocks[b].refs == 1 for b in session.blocks[-(-segment.start // BLOCK) :])
        for segment in segments:
            room -= self._needed(segment)
            if room < 0:
                raise PoolFullError(segment.session_id)

    def _needed(self, segment: Segment) -> int:
        blocks = self._sessions[segment.session_id].blocks
        kept = -(-segment.start // BLOCK)
        rewrites = (
            bool(segment.start % BLOCK and len(segment.token_ids)) and self._blocks[blocks[kept - 1]].refs > 1
        )
        return -(-(segment.start + len(segment.token_ids)) // BLOCK) - kept + rewrites

    def _own_last(self, session: _Session, copies: list[tuple[int, int]]) -> None:
        """Make the session's last, partly cut block safe to write: a copy if shared, else no longer addressable."""
        index = session.blocks[-1]
        block = self._blocks[index]
        if block.refs > 1:
            session.blocks[-1] = self._take()
            copies.append((index, session.blocks[-1]))
            block.refs -= 1
        elif block.content is not None:
            del self._by_content[block.content]
            block.content = None

    def _address(self, session: _Session, index: int) -> None:
        name = self._blocks[session.blocks[index - 1]].name if index else _ROOT
        content = (name, tuple(session.token_ids[index * BLOCK : (index + 1) * BLOCK]))
        own = session.blocks[index]
        known = self._by_content.get(content)
        if known is None:
            self._last_name += 1
            self._blocks[own].content = content
            self._blocks[own].name = self._last_name
            self._by_content[content] = own
        elif known != own:
            self._hold(known)
            session.blocks[index] = known
            self._release(own)

    def _take(self) -> int:
        if self._free:
            index = self._free.pop()
        else:
            index, _ = self._idle.popitem(last=False)
            content = self._blocks[index].content
            if content is not None:
                del self._by_content[content]
        self._blocks[index] = _Block(refs=1)
        return index

    def _hold(self, index: int) -> None:
        self._idle.pop(index, None)
        self._blocks[index].refs += 1

    def _drop(self, session: _Session, keep: int) -> None:
        for index in reversed(session.blocks[keep:]):
            self._release(index)
        del session.blocks[keep:]

    def _release(self, index: int) -> None:
        block = self._blocks[index]
        block.refs -= 1
        if block.refs == 0:
            if block.content is None:
                self._free.append(index)
            else:
                self._idle[index] = None
