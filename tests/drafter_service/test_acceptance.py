"""Drafters before a verifier that waits for them: what is drafted is what the rule of each mode accepts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest

from drafter_service.sources.model import ModelSource
from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.replay import Faults, ReplaySource
from forerun.core.acceptance import decider, verify
from forerun.core.draft_tree import DraftTree
from forerun.core.types import FinishReason, Mode, Verdict
from forerun.engine.executor import EngineThread

NUM_TOKENS = 60
PLAN = 4


@dataclass
class Answer:
    token_ids: list[int]
    tested: int = 0
    accepted: int = 0
    messages: list = field(default_factory=list)


def plain(target, snapshot):
    """The text without a drafter; greedy and coupled mode."""
    text, rule = (
        list(snapshot.token_ids),
        decider(snapshot.mode, snapshot.sampling, snapshot.noise_key, bytes(32)),
    )
    while len(text) < snapshot.last_position:
        text.append(rule.decide(target.logits(text), len(text), ())[0])
    return text


async def answer(stream, target, snapshot, *, entropy=bytes(32)) -> Answer:
    """Decode one session, each pass waiting until the head has a drafted child."""
    tree = DraftTree(snapshot.token_ids, merge=snapshot.mode is not Mode.REJECTION)
    tree.open_stream(1, snapshot.window)
    rule = decider(snapshot.mode, snapshot.sampling, snapshot.noise_key, entropy)
    result = Answer(tree.token_ids)
    stream.say(snapshot)
    while tree.base < snapshot.last_position:
        while not tree.children(None, 1):
            draft = await stream.hear()
            result.messages.append(draft)
            tree.graft(1, draft.base, draft.parent, draft.first_id, draft.token_ids, draft.laws)
        base, room = tree.base, snapshot.last_position - tree.base - 1
        plan = tree.plan(min(PLAN, room), 1)
        texts = [[*tree.token_ids, *(node.token_id for node in plan[:row])] for row in range(len(plan) + 1)]
        logits = np.array([target.logits(text) for text in texts])
        outcome = verify(rule, logits, tree, plan, 1)
        tree.settle(outcome.token_ids)
        result.tested += outcome.num_tested
        result.accepted += outcome.num_accepted
        stream.say(
            Verdict(
                base=base,
                token_ids=outcome.token_ids,
                num_drafted=outcome.num_tested,
                num_accepted=outcome.num_accepted,
                head_node=tree.head_node(1),
                seen_id=tree.seen_id(1),
                held=tree.held(1),
                next_length=PLAN,
                window=snapshot.window,
                finish_reason=FinishReason.LENGTH
                if tree.base >= snapshot.last_position
                else FinishReason.NONE,
            )
        )
    return result


@pytest.fixture
async def model_source(make_engine):
    threads = []

    def make(seed):
        threads.append(EngineThread())
        return ModelSource(make_engine(seed=seed), threads[-1])

    yield make
    for thread in threads:
        thread.close()


@pytest.fixture
async def drafted(make_verifier, make_drafter):
    """Let a source draft one session to its end; its answer and the drafter's last report."""

    async def run(source, target, snapshot, **options):
        verifier, drafter = await make_verifier(), await make_drafter(source)
        call = drafter.assist(verifier)
        result = await answer(await verifier.attached(), target, snapshot, **options)
        async with asyncio.timeout(20):
            report = [one async for one in call][-1]
        assert (report.num_tested, report.num_accepted) == (result.tested, result.accepted)
        assert report.num_restarts == 0
        return result

    return run


@pytest.mark.parametrize("mode", Mode)
async def test_the_target_as_its_own_drafter_is_always_right(
    drafted, make_engine, model_source, make_snapshot, mode
):
    target = make_engine()
    snapshot = make_snapshot(mode, last_position=NUM_TOKENS)
    result = await drafted(model_source(0), target, snapshot)
    assert result.tested == result.accepted > NUM_TOKENS // 2
    if mode is not Mode.REJECTION:
        assert result.token_ids == plain(target, snapshot)


@pytest.mark.parametrize("mode", Mode)
async def test_another_model_is_sometimes_right_and_changes_no_text(
    drafted, make_engine, model_source, make_snapshot, mode
):
    target = make_engine()
    snapshot = make_snapshot(mode, last_position=4 * NUM_TOKENS)
    result = await drafted(model_source(1), target, snapshot)
    assert 0 < result.accepted < result.tested
    if mode is not Mode.REJECTION:
        assert result.token_ids == plain(target, snapshot)


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
async def test_a_replay_with_errors_and_delays_changes_no_text(drafted, make_engine, make_snapshot, mode):
    target = make_engine()
    snapshot = make_snapshot(mode, last_position=2 * NUM_TOKENS)
    text = plain(target, snapshot)
    # Beyond the end, so that no position is without a draft to wait for.
    source = ReplaySource([text], Faults(error_rate=0.2, delay_ms=2, seed=1))
    result = await drafted(source, target, snapshot)
    assert result.token_ids == text
    assert 0 < result.accepted < result.tested


async def test_look_up_continues_a_text_that_repeats(drafted, make_snapshot, make_engine):
    class Loop:
        """A target that counts to seven again and again."""

        @staticmethod
        def logits(token_ids):
            return np.eye(16, dtype=np.float32)[(token_ids[-1] + 1) % 8]

    snapshot = make_snapshot(token_ids=tuple(i % 8 for i in range(12)), last_position=NUM_TOKENS)
    result = await drafted(NgramSource(), Loop(), snapshot)
    assert result.token_ids == [i % 8 for i in range(NUM_TOKENS)]
    assert result.tested == result.accepted > NUM_TOKENS // 2
    assert all(len(message.token_ids) <= PLAN for message in result.messages)


async def test_in_rejection_mode_every_message_has_the_length_that_was_fixed(
    drafted, make_engine, model_source, make_snapshot
):
    snapshot = make_snapshot(Mode.REJECTION, last_position=4 * NUM_TOKENS, end_token_ids=(0, 1, 2))
    result = await drafted(model_source(1), make_engine(), snapshot)
    early = [m for m in result.messages if m.base + 2 * PLAN + 1 < snapshot.last_position]
    assert any(set(message.token_ids[:-1]) & {0, 1, 2} for message in early)
    assert all(1 <= len(message.token_ids) <= PLAN for message in early)
    assert all(len(message.laws) == len(message.token_ids) for message in early)
