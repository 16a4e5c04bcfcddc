"""Rejection mode over the real service: every token has the target's law, whatever the drafter's law and timing.

The target is a Llama whose attention says nothing, so its law depends on the last token alone, and each of some
hundred thousand tokens is one more sample of one of sixteen known laws.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from scipy.stats import chi2

from forerun.core.acceptance import draw
from forerun.core.sampling import law
from forerun.core.types import Law, Sampling
from forerun.engine.interface import Engine, Segment
from forerun.engine.load import load_engine
from forerun.engine.random_model import save_tiny_model
from forerun.v1 import verifier_pb2
from tests.verifier_service.conftest import Answer, Service, serving
from tests.verifier_service.patient import Patient

VOCAB = 16
PROMPT = [3, 1, 2]
SAMPLING = Sampling(1.0, top_k=12)
MAX_SESSIONS = 240
AT_ONCE = 16
TOKENS = 1000
DEPTH_TWO = 20_000  # samples of the second token of a pass, at least
SALVAGED = 500  # tokens accepted from a draft that named older text, more than


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder: Path = tmp_path_factory.mktemp("law")
    save_tiny_model(folder, vocab_size=VOCAB, layers=1, hidden=32, max_context=TOKENS + 64, seed=11)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"].zero_()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return load_engine(str(folder), dtype="float32", threads=1, pool_bytes=64 << 20)[0]


def target_law(engine: Engine, last: int) -> np.ndarray:
    engine.open("oracle", [0, last])
    kept = law(engine.forward([Segment("oracle", 0, [0, last], 1)])[0][0], SAMPLING)
    engine.close("oracle")
    dense = np.zeros(VOCAB)
    dense[kept.token_ids] = kept.probs
    return dense


class Drafter:
    """Draws chains from laws of its own and ships them, some one verdict late; both are fixed before drawing."""

    def __init__(self, seed: int, laws: np.ndarray) -> None:
        self.rng = np.random.default_rng(seed)
        self.clock = random.Random(seed)
        self.laws = laws
        self.next_id = 1

    def draft(self, token_ids: list[int]) -> verifier_pb2.Draft:
        last, tokens, laws = token_ids[-1], [], []
        for _ in range(self.clock.choice([2, 3, 4])):
            probs = self.laws[last].astype(np.float32).astype(np.float64)
            last = draw(Law(np.arange(VOCAB), probs), self.rng.random())
            tokens.append(last)
            laws.append(verifier_pb2.Law(token_ids=range(VOCAB), probs=probs.tolist()))
        first_id, self.next_id = self.next_id, self.next_id + len(tokens)
        return verifier_pb2.Draft(
            base=len(token_ids), parent=0, first_id=first_id, token_ids=tokens, laws=laws
        )


async def assist(
    service: Service, drafter: Drafter, name: str, told: asyncio.Future[verifier_pb2.Started]
) -> None:
    started, said = await told, asyncio.Queue[verifier_pb2.Draft | None]()

    async def requests() -> AsyncIterator[verifier_pb2.VerifyRequest]:
        yield service.attach(name, started, ships_laws=True)
        while (draft := await said.get()) is not None:
            yield verifier_pb2.VerifyRequest(draft=draft)

    token_ids: list[int] = []
    late: verifier_pb2.Draft | None = None
    async for response in service.stub.Verify(requests()):
        token_ids.extend(response.snapshot.token_ids or response.verdict.token_ids)
        if response.verdict.finish_reason:
            break
        draft, held_back = drafter.draft(token_ids), drafter.clock.random() < 0.12
        if late:
            said.put_nowait(late)
        # One that ships no draft of this text says that nothing follows, for otherwise it would be waited for.
        silent = verifier_pb2.Draft(base=len(token_ids), first_id=drafter.next_id)
        said.put_nowait(silent if late or held_back else draft)
        late = draft if held_back and not late else None
    said.put_nowait(None)


async def sample(service: Service, laws: np.ndarray, number: int) -> Answer:
    told: asyncio.Future[verifier_pb2.Started] = asyncio.get_running_loop().create_future()
    drafting = asyncio.create_task(assist(service, Drafter(number, laws), f"n{number}", told))
    request = service.request(PROMPT, session_id=f"n{number}", max_tokens=TOKENS, sampling=SAMPLING)
    answer = await service.decode(request, told.set_result)
    await drafting
    return answer


@pytest.mark.timeout(900)
async def test_every_token_has_the_targets_law_with_late_and_salvaged_drafts(engine: Engine) -> None:
    expected = np.stack([target_law(engine, last) for last in range(VOCAB)])
    # Near the target, so that many drafts are accepted; away from it, so that a biased rule would show.
    noise = np.random.default_rng(2).dirichlet(np.full(VOCAB, 0.3), size=VOCAB)
    laws = 0.85 * expected + 0.15 * noise
    all_tokens, depth_two = np.zeros((VOCAB, VOCAB)), np.zeros((VOCAB, VOCAB))
    salvaged = 0
    async with serving(engine, max_sessions=AT_ONCE, pacing=Patient()) as service:
        for first in range(0, MAX_SESSIONS, AT_ONCE):
            if depth_two.sum() >= DEPTH_TWO and salvaged > SALVAGED:
                break
            for answer in await asyncio.gather(*(sample(service, laws, first + i) for i in range(AT_ONCE))):
                text = [*PROMPT, *answer.token_ids]
                for settled in answer.passes:
                    salvaged += getattr(settled, "pass").num_salvaged
                    for depth in range(len(settled.token_ids)):
                        last, token = text[settled.base + depth - 1], text[settled.base + depth]
                        all_tokens[last, token] += 1
                        depth_two[last, token] += depth == 1
    assert depth_two.sum() >= DEPTH_TWO
    assert salvaged > SALVAGED
    assert all_tokens[expected == 0].sum() == 0
    assert chi_square(all_tokens, expected) > 0.001
    assert chi_square(depth_two, expected) > 0.001


def chi_square(observed: np.ndarray, law_by_row: np.ndarray) -> float:
    """p of the counts, row by row under that row's law; a row's cells that expect fewer than 8 are taken together."""
    statistic, freedom = 0.0, 0
    for counts, probs in zip(observed, law_by_row, strict=True):
        rare = probs * counts.sum() < 8
        cells = np.append(counts[~rare], counts[rare].sum())
        wanted = np.append(probs[~rare], probs[rare].sum()) * counts.sum()
        kept = wanted >= 8
        if kept.sum() < 2:
            continue
        statistic += float(((cells[kept] - wanted[kept]) ** 2 / wanted[kept]).sum())
        freedom += int(kept.sum()) - 1 + int(wanted[~kept].sum() > 0)
    return float(chi2.sf(statistic, freedom))


def test_the_check_sees_a_law_that_is_off_by_a_little() -> None:
    """0.5/0.3/0.2 with a total variation of 0.02, in as many samples."""
    rng = np.random.default_rng(5)
    for probs, passes in (([0.5, 0.3, 0.2], True), ([0.52, 0.29, 0.19], False)):
        counts = np.bincount(rng.choice(3, DEPTH_TWO, p=probs), minlength=3).astype(float)
        assert (chi_square(counts[None], np.array([[0.5, 0.3, 0.2]])) > 0.001) is passes
