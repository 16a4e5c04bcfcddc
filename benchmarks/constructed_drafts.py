"""Greedy speculative decoding in one process, with drafts that are right as often as is asked.

The target, its passes, the draft tree, the rule of acceptance and pacing are the services' own; only the drafts are
made: the target's own text, known from an earlier run, with each token replaced with probability 1 - accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from forerun.core.acceptance import Greedy, verify
from forerun.core.draft_tree import DraftTree, Node
from forerun.core.pacing import Outlook, Pacing
from forerun.core.survival import Survival
from forerun.engine.interface import Engine, Segment

WINDOW = 32
MAX_ROWS = 512
STREAM = 1
RULE = Greedy()


@dataclass
class Answer:
    """One session: its text so far, what is drafted of it, and how far the drafter's own KV is right."""

    name: str
    tree: DraftTree
    survival: Survival
    num_prompt: int
    computed: int = 0  # positions of the target's KV
    drafted_from: int = 0  # positions of the drafter's KV that hold settled text
    num_passes: int = 0
    num_tested: int = 0
    num_accepted: int = 0

    @property
    def said(self) -> list[int]:
        """The answer's tokens."""
        return self.tree.token_ids[self.num_prompt :]


@dataclass
class Drafts:
    """What is drafted: `texts` by session, right with probability `accuracy` a token.

    `engine`: a model whose steps are computed for every drafted token and then not looked at, as a drafter on the same
    device would cost; None: drafts cost nothing here, as those of another machine.
    """

    texts: Sequence[Sequence[int]]
    accuracy: float
    vocab_size: int
    engine: Engine | None = None
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def draw(self, number: int, at: int, count: int) -> list[int]:
        """`count` tokens for session `number` from its answer's token `at` on."""
        right = self.texts[number][at : at + count]
        wrong = self.random.random(len(right)) >= self.accuracy
        return [(t + 1) % self.vocab_size if w else t for t, w in zip(right, wrong, strict=True)]


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    drafts: Drafts | None,
    pass_us: Mapping[int, float],
) -> tuple[list[Answer], float]:
    """Answers of `max_tokens` tokens to all prompts at once, and the seconds they took, prompts not counted.

    `pass_us`: what passes take, microseconds by number of rows.
    """
    pacing = Pacing()
    pacing.cost.begin(pass_us)
    answers = [
        Answer(f"{i}", DraftTree(prompt, merge=True), pacing.survival("made"), len(prompt))
        for i, prompt in enumerate(prompts)
    ]
    for answer in answers:
        answer.tree.open_stream(STREAM, WINDOW)
        prompt = answer.tree.token_ids
        for one in (engine, drafts.engine if drafts else None):
            if one is not None:
                one.open(answer.name, prompt[:1])
                one.forward([Segment(answer.name, 0, prompt[:-1], 0)])
        answer.computed = answer.drafted_from = len(prompt) - 1
    started = time.perf_counter()
    while running := [a for a in answers if len(a.said) < max_tokens]:
        if drafts is not None:
            _draft(running, drafts, pacing, max_tokens)
        _decide(engine, running, pacing)
    seconds = time.perf_counter() - started
    for answer in answers:
        engine.close(answer.name)
        if drafts and drafts.engine:
            drafts.engine.close(answer.name)
    return answers, seconds


def _draft(running: Sequence[Answer], drafts: Drafts, pacing: Pacing, max_tokens: int) -> None:
    """Every session has a fresh burst under its head, as long as pacing asks for."""
    bursts: dict[str, list[int]] = {}
    for answer in running:
        count = min(pacing.burst_length(answer.survival), max_tokens - len(answer.said) - 1)
        burst = drafts.draw(int(answer.name), len(answer.said), max(0, count))
        first_id = answer.tree.seen_id(STREAM) + 1
        answer.tree.graft(STREAM, answer.tree.base, 0, first_id, burst)
        bursts[answer.name] = burst
    if drafts.engine is None:
        return
    for step in range(max(map(len, bursts.values()))):
        segments = []
        for answer in running:
            burst, text = bursts[answer.name], answer.tree.token_ids
            if step < len(burst):
                fed = burst[step - 1 : step] if step else text[answer.drafted_from :]
                start = len(text) + step - 1 if step else answer.drafted_from
                segments.append(Segment(answer.name, start, fed, 1, RULE.sampler))
        for said in drafts.engine.forward(segments):
            RULE.decide(said[0], 0, ())
    for answer in running:
        if bursts[answer.name]:
            answer.drafted_from = len(answer.tree.token_ids)


def _decide(engine: Engine, running: Sequence[Answer], pacing: Pacing) -> None:
    """One pass over all running sessions settles at least one token of each."""
    outlooks = [Outlook(a.survival, a.tree.depth()) for a in running]
    plans: list[tuple[Node, ...]] = [
        a.tree.plan(length) for a, length in zip(running, pacing.allot(outlooks, 0, MAX_ROWS), strict=True)
    ]
    segments = [
        Segment(
            a.name,
            a.computed,
            [*a.tree.token_ids[a.computed :], *(node.token_id for node in plan)],
            len(plan) + 1,
            RULE.sampler,
        )
        for a, plan in zip(running, plans, strict=True)
    ]
    started = time.perf_counter()
    found = engine.forward(segments)
    pacing.cost.observe(sum(len(s.token_ids) for s in segments), 1e6 * (time.perf_counter() - started))
    for answer, plan, rows in zip(running, plans, found, strict=True):
        outcome = verify(RULE, rows, answer.tree, plan, None)
        answer.computed = answer.tree.base + min(len(outcome.token_ids) - 1, len(plan))
        answer.tree.settle(outcome.token_ids)
        answer.survival.observe(outcome.num_tested, outcome.num_accepted)
        answer.num_passes += 1
        answer.num_tested += outcome.num_tested
        answer.num_accepted += outcome.num_accepted
