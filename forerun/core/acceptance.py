"""The last word on every token: what a drafted token must pass to be settled, and the one loop that asks.

Greedy and coupled mode name the token without reading the draft; a draft only saves the pass. Rejection mode
is speculative sampling: Leviathan et al. 2023 (arXiv 2211.17192, algorithm 1), Chen et al. 2023 (arXiv
2302.01318, algorithm 2). p is the target's law, q the drafter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from forerun.core.draft_tree import DraftTree, Node
from forerun.core.noise import keyed_draw
from forerun.core.sampling import argmax, law
from forerun.core.types import Law, Mode, Origin, Row, Said, Sampler, Sampling
from forerun.errors import InternalFault, InvalidRequest

MAX_LAW_ERROR = 1e-3  # how far a shipped law's sum may be from 1
UNNAMED = -1  # instead of a token id: the logits were not numbers

# Last words of the seeds, so that equal entropy on both sides still gives independent streams.
DECIDER, PROPOSER = 0, 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A drafted token at a position; `law`: what it was drawn from, None for look-up (q = 1 at the token)."""

    token_id: int
    law: Law | None = None


class Decider(Protocol):
    """Settles one position. `sampler`: with it an engine can name the token itself; None where drafts matter to it."""

    sampler: Sampler | None

    def decide(self, row: Row, position: int, candidates: Sequence[Candidate]) -> tuple[int, bool]:
        """Return the token settled at index `position` of the text, and whether a candidate was accepted.

        `row`: logits, or the token that the engine named with `sampler`. Raises InternalFault where it could not.
        """


class Greedy:
    """The most probable token, the lower id on ties."""

    def __init__(self) -> None:
        self.sampler: Sampler | None = Sampler(Sampling())

    def decide(
        self,
        row: Row,
        position: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
    ) -> tuple[int, bool]:
        """Return argmax; accepted if it is among the candidates."""
        token_id = named(row) if isinstance(row, np.integer) else argmax(row)
        return token_id, any(c.token_id == token_id for c in candidates)


class Coupled:
    """The target's own keyed draw: a function of prompt, settings and seed."""

    def __init__(self, sampling: Sampling, key: bytes) -> None:
        self._sampling = sampling
        self._key = key
        self.sampler: Sampler | None = Sampler(sampling, key)

    def decide(self, row: Row, position: int, candidates: Sequence[Candidate]) -> tuple[int, bool]:
        """Return the keyed draw; accepted if it is among the candidates."""
        token_id = (
            named(row)
            if isinstance(row, np.integer)
            else keyed_draw(row, self._sampling, self._key, position)
        )
        return token_id, any(c.token_id == token_id for c in candidates)


class Rejection:
    """Keeps a drafted token with probability min(1, p/q), else draws from norm(max(0, p - q)).

    Whatever q is, the settled token has the law p, provided the candidate was drawn from q. Accept uniforms
    and draws come from two independent children of `rng`.
    """

    def __init__(self, sampling: Sampling, rng: np.random.Generator) -> None:
        self._sampling = sampling
        self._accept, self._draw = rng.spawn(2)
        self.sampler: Sampler | None = None

    def decide(
        self,
        row: Row,
        position: int,  # noqa: ARG002
        candidates: Sequence[Candidate],
    ) -> tuple[int, bool]:
        """Test the one candidate, or draw where there is none.

        Raises ValueError for several, which would be biased, and for a row that is no logits.
        """
        if len(candidates) > 1:
            raise ValueError("rejection mode tests one candidate a position")
        if isinstance(row, np.integer):
            raise ValueError("rejection mode needs the target's law")  # noqa: TRY004 - the caller's fault
        target = law(row, self._sampling)
        if not candidates:
            return draw(target, self._draw.random()), False
        x, draft = candidates[0].token_id, candidate_law(candidates[0])
        if self._accept.random() < accept_prob(target, draft, x):  # a uniform in [0, 1): 0 never, 1 always
            return x, True
        return draw(residual(target, draft, len(row)), self._draw.random()), False


def named(row: np.integer[Any]) -> int:
    """The token that the engine named; raises InternalFault where it could not, as sampling.argmax."""
    if row == UNNAMED:
        raise InternalFault("the model gave a logit that is not a number", reason="BAD_LOGITS")
    return int(row)


def candidate_law(candidate: Candidate) -> Law:
    """The q of a candidate, float64: its law divided by its own sum.

    One-hot where it has no law, or one that leaves the token out.
    """
    given = candidate.law
    if given is None or prob(given, candidate.token_id) <= 0:
        return Law(np.array([candidate.token_id]), np.ones(1))
    return Law(given.token_ids, given.probs / given.probs.sum())


def accept_prob(target: Law, draft: Law, token_id: int) -> float:
    """The probability min(1, p/q) with which a token drawn from `draft` is kept; 0 where p is 0."""
    p, q = prob(target, token_id), prob(draft, token_id)
    return p / q if p < q else float(p > 0)


def residual(target: Law, draft: Law, vocab_size: int) -> Law:
    """norm(max(0, p - q)), float64. Where rounding leaves nothing of it, p is as near, and is returned."""
    rest = np.zeros(vocab_size)
    rest[target.token_ids] = target.probs
    inside = (draft.token_ids >= 0) & (draft.token_ids < vocab_size)
    rest[draft.token_ids[inside]] -= draft.probs[inside]
    token_ids = np.flatnonzero(rest > 0)
    if not len(token_ids):
        return target
    return Law(token_ids, rest[token_ids] / rest[token_ids].sum())


def draw(source: Law, u: float) -> int:
    """The token at quantile `u` in [0, 1) of a law, in its order; its probabilities need not sum to 1."""
    sums = np.cumsum(source.probs)
    index = int(np.searchsorted(sums, u * sums[-1], side="right"))
    if index == len(sums):  # rounding carried u to the very end
        index = int(np.flatnonzero(source.probs)[-1])
    return int(source.token_ids[index])


def prob(source: Law, token_id: int) -> float:
    """The probability a law gives to a token."""
    return float(source.probs[source.token_ids == token_id].sum())


def check_law(shipped: Law, token_id: int) -> None:
    """Nothing is wrong with a shipped law, else InvalidRequest with reason BAD_LAW."""
    ids, probs = shipped.token_ids, shipped.probs
    fault = ""
    if ids.ndim != 1 or ids.shape != probs.shape or not len(ids):
        fault = "it must have one probability for each of at least one token"
    elif not np.isfinite(probs).all() or (probs < 0).any():
        fault = "a probability is negative or not a number"
    elif len(np.unique(ids)) != len(ids):
        fault = "a token is in it twice"
    elif not abs(float(probs.sum()) - 1) <= MAX_LAW_ERROR:
        fault = f"its sum {float(probs.sum()):.6g} is not 1"
    elif prob(shipped, token_id) <= 0:
        fault = f"the drafted token {token_id} is not in it"
    if fault:
        raise InvalidRequest(f"not a law: {fault}", reason="BAD_LAW", field="draft.laws")


def decider(mode: Mode, sampling: Sampling, noise_key: bytes, entropy: bytes) -> Decider:
    """The verifier's side of a mode. `entropy`: fresh random bytes, used in rejection mode alone."""
    if mode == Mode.GREEDY:
        return Greedy()
    if mode == Mode.COUPLED:
        return Coupled(sampling, noise_key)
    return Rejection(sampling, generator(entropy, DECIDER))


def generator(entropy: bytes, side: int) -> np.random.Generator:
    """A side's own random numbers from bytes that both may have."""
    return np.random.default_rng(np.random.SeedSequence(int.from_bytes(entropy, "little"), spawn_key=(side,)))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one session's share of a pass decided; tokens and origins in order, at least one."""

    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    target_token_ids: tuple[int, ...]  # what the target said: at each tested position, then the closing token
    num_tested: int  # positions at which a draft was tested; stops at the first rejection
    num_accepted: int
    num_salvaged: int  # accepted although late, or without a row of their own to follow
    accepted: tuple[Node, ...] = ()  # the accepted nodes, in order
    refused: tuple[Node, ...] = ()  # the nodes that lost at the position of a correction


def verify(
    decider: Decider,
    rows: Said,
    tree: DraftTree,
    plan: Sequence[Node],
    stream: int | None,
) -> Outcome:
    """The tokens one pass settles: accepted drafts, then a correction or bonus, or a waiting child.

    `rows`: logits, (len(plan) + 1, vocab), or the tokens that the engine named, (len(plan) + 1,); row i follows
    `plan[:i]`. Whatever children wait at a row are
    tested, also at the last one and with an empty plan: a bonus is drawn only where no child waits. In
    rejection mode (a tree without merging) they are `stream`'s. Ends at the first settled token that has no
    row. The tree is not changed.
    """
    token_ids: list[int] = []
    origins: list[Origin] = []
    accepted: list[Node] = []
    num_tested = num_salvaged = 0
    waiting: tuple[Node, ...] = ()
    for row in range(len(plan) + 1):
        waiting = _candidates(tree, plan, row, stream)
        candidates = [Candidate(node.token_id, node.law) for node in waiting]
        token_id, drafted = decider.decide(rows[row], tree.base + row, candidates)
        token_ids.append(token_id)
        num_tested += bool(waiting)
        if not drafted:
            origins.append(_origin_undrafted(row, waiting))
            break
        origins.append(Origin.DRAFTED)
        node = next(node for node in waiting if node.token_id == token_id)
        accepted.append(node)
        has_row = row < len(plan) and plan[row] is node
        num_salvaged += node.late or not has_row
        if not has_row:
            break
    refused = waiting if origins[-1] is Origin.CORRECTION else ()
    return Outcome(
        tuple(token_ids),
        tuple(origins),
        tuple(token_ids),
        num_tested,
        len(accepted),
        num_salvaged,
        tuple(accepted),
        refused,
    )


def _candidates(tree: DraftTree, plan: Sequence[Node], row: int, stream: int | None) -> tuple[Node, ...]:
    """What is tested at a row. A planned node stays so even if its stream was closed during the pass."""
    planned = plan[row : row + 1]
    if planned and not tree.merge:
        return tuple(planned)
    children = tree.children(plan[row - 1] if row else None, None if tree.merge else stream)
    return children if set(planned) <= set(children) else (*planned, *children)


def _origin_undrafted(row: int, waiting: Sequence[Node]) -> Origin:
    if waiting:
        return Origin.CORRECTION
    return Origin.BONUS if row else Origin.PLAIN
