"""One session as its drafter sees it: the mirror of its own branch, the burst it is drawing, its credits.

Pure: no clock, no I/O. `ask` says what is wanted next, `take` receives it and returns a message when a
burst is complete, `apply` takes a verdict in.

The selection rule of rejection mode, as it binds this file: whether and when a position is tested must not
depend on the token drafted there. So a burst's length is fixed before its first token is drawn, from counts
alone; every token drawn for a position that is still open is shipped with its burst; an end token does not
cut a burst short. Two things remain allowed. A burst that the settled text contradicts is given up
unfinished: the contradiction lies at a settled position, so each of its tokens either stands at a settled
position or continues a text that can no longer come, and no open position loses a token drawn for it. And a
burst whose branch is begun anew, because the verifier holds less of it than this side thought, is given up
unshipped: the verifier's account has never seen its tokens, so it cannot depend on them, and what is drawn
there next is a fresh draw.
"""

from __future__ import annotations

from dataclasses import dataclass

from drafter_service.sources.source import Ask, Drawn
from forerun.core.draft_tree import DraftTree
from forerun.core.proposer import proposer
from forerun.core.types import DraftMessage, FinishReason, Law, Mode, Snapshot, Verdict
from forerun.errors import InternalFault

_STREAM = 1  # a mirror has one stream, its own


@dataclass(slots=True)
class Counts:
    """Running sums of one assisted session, over all its streams; as `AssistResponse`."""

    num_drafted: int = 0
    num_tested: int = 0
    num_accepted: int = 0
    num_messages: int = 0
    num_restarts: int = 0


class DraftSession:
    """One Verify stream's state, from its snapshot on.

    Invariants: `_path` is the settled text, then the mirror's chain, then the burst; the burst hangs from
    the end of the chain; `len(_burst) < _length` while a burst is under way, and `_length` is 0 otherwise.
    """

    def __init__(
        self, key: str, snapshot: Snapshot, *, max_context: int | None, entropy: bytes, counts: Counts
    ) -> None:
        self.key = key
        self.counts = counts
        self.finish_reason = FinishReason.NONE
        self.tree = DraftTree(snapshot.token_ids, merge=snapshot.mode is not Mode.REJECTION)
        self.tree.open_stream(_STREAM, snapshot.window)
        self.window = snapshot.window
        self._next_length = snapshot.next_length
        self._limit = min(snapshot.last_position, max_context or snapshot.last_position)
        self._end_token_ids = frozenset(snapshot.end_token_ids)
        self._mode = snapshot.mode
        self._proposer = proposer(snapshot.mode, snapshot.sampling, snapshot.noise_key, entropy)
        self._path = list(snapshot.token_ids)
        self._burst: list[int] = []
        self._laws: list[Law] = []
        self._length = 0  # tokens the burst under way will have
        self._next_id = 1
        self._branch = 0  # changes when drawn tokens become void
        self._silent = False  # the source has nothing to say to this text
        self._answered = -1  # the settled length the last message spoke about

    @property
    def drawing(self) -> bool:
        """Whether a burst has its first tokens."""
        return bool(self._burst)

    def ask(self) -> Ask | None:
        """What to draw next; None while credits, the text's end, the source or the session forbid it."""
        if self.window == 0 or self._silent or self.finish_reason is not FinishReason.NONE:
            return None
        if self._length == 0:
            self._length = self._burst_length()
        if self._length == 0:
            return None
        missing = self._length - len(self._burst)
        return Ask(self.key, tuple(self._path), self.tree.base, missing, self._proposer, self._branch)

    def take(self, ask: Ask, drawn: Drawn) -> DraftMessage | None:
        """Add drawn tokens to the burst; return the message once it is complete. What was torn is dropped."""
        if ask.branch != self._branch or self.finish_reason is not FinishReason.NONE:
            return None
        token_ids, ended = self._cut(drawn.token_ids[: ask.length])
        self._burst.extend(token_ids)
        self._laws.extend(drawn.laws[: len(token_ids)])
        self._path.extend(token_ids)
        self._silent = drawn.ends and not token_ids
        if len(self._burst) >= self._length or ended or drawn.ends:
            return self._ship()
        return None

    def apply(self, verdict: Verdict) -> bool:
        """The text has grown by the verdict's tokens and the mirror agrees with the verifier's tree.

        Returns False if it did not and the branch begins anew. Raises InternalFault for a verdict that
        leaves a gap.
        """
        if verdict.base != self.tree.base:
            raise InternalFault(
                f"a verdict at {verdict.base} tokens where {self.tree.base} are settled",
                reason="VERDICT_OUT_OF_ORDER",
            )
        self.finish_reason = verdict.finish_reason
        self.counts.num_tested += verdict.num_drafted
        self.counts.num_accepted += verdict.num_accepted
        self._next_length = verdict.next_length
        self._silent = False
        self.window = verdict.window
        self.tree.set_window(_STREAM, verdict.window)
        self.tree.settle(verdict.token_ids)
        agreed = self.tree.agrees(_STREAM, verdict.head_node, verdict.seen_id, verdict.held)
        if not agreed:
            self.tree.drop_branch(_STREAM)
            self.counts.num_restarts += 1
        ahead = self._path[verdict.base :]
        on_text = ahead[: len(verdict.token_ids)] == list(verdict.token_ids)
        self._rebuild(keep_burst=agreed and on_text)
        return agreed

    def _burst_length(self) -> int:
        """Tokens of the next burst, from counts alone; 0: not now.

        A burst waits for room for all of it, so that credits come back as whole messages. Nothing is
        drafted behind an end token: if it is accepted the session is over, and if not, the branch is.
        """
        wanted = min(self._next_length, self.window, self._limit - len(self._path))
        room = self.window - self.tree.held(_STREAM)
        ends = len(self._path) > self.tree.base and self._path[-1] in self._end_token_ids
        return 0 if ends or wanted <= 0 or wanted > room else wanted

    def _cut(self, token_ids: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """Greedy and coupled mode: stop at the first end token, and say whether there was one."""
        if self._mode is not Mode.REJECTION:
            for i, token_id in enumerate(token_ids):
                if token_id in self._end_token_ids:
                    return token_ids[: i + 1], True
        return token_ids, False

    def _ship(self) -> DraftMessage | None:
        token_ids, laws = tuple(self._burst), tuple(self._laws)
        self._burst, self._laws, self._length = [], [], 0
        if not token_ids:
            return self._acknowledge()
        self._answered = self.tree.base
        # A chain is torn from a node down to its end: if anything of it is alive, so is the last node sent.
        parent = self._next_id - 1 if self.tree.held(_STREAM) else self.tree.head_node(_STREAM)
        message = DraftMessage(self.tree.base, parent, self._next_id, token_ids, laws)
        self.tree.graft(_STREAM, message.base, parent, message.first_id, token_ids, laws)
        self._next_id += len(token_ids)
        self.counts.num_drafted += len(token_ids)
        self.counts.num_messages += 1
        return message

    def _acknowledge(self) -> DraftMessage | None:
        """An empty draft, once a text: the source has nothing to say, and the verifier need not wait for it."""
        if self._answered == self.tree.base:
            return None
        self._answered = self.tree.base
        return DraftMessage(self.tree.base, 0, self._next_id, ())

    def _rebuild(self, *, keep_burst: bool) -> None:
        """Restore the invariants after the text grew; what remains of the burst stays if it may."""
        overtaken = max(0, self.tree.base - (len(self._path) - len(self._burst)))
        if keep_burst and overtaken <= len(self._burst):
            self._burst, self._laws = self._burst[overtaken:], self._laws[overtaken:]
            self._length -= overtaken if self._length else 0
        else:
            self._burst, self._laws, self._length = [], [], 0
            self._branch += 1
        chain = [node.token_id for node in self.tree.plan(self.tree.depth(_STREAM), _STREAM)]
        self._path = [*self.tree.token_ids, *chain, *self._burst]
