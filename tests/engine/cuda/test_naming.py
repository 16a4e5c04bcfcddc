"""Tokens named on the device are the ones the host would name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from forerun.core.acceptance import UNNAMED, Coupled, Greedy
from forerun.core.noise import keyed_draw, noise_key
from forerun.core.sampling import argmax
from forerun.core.types import Sampler, Sampling
from forerun.engine.cuda.naming import Naming
from forerun.engine.interface import Segment
from forerun.engine.paged_engine import PagedEngine
from forerun.engine.rows import LOGITS
from forerun.errors import InternalFault

VOCAB = 1000
KEY = noise_key(5, [1, 2, 3])
GREEDY = Sampler(Sampling())


def rows(count: int, *, seed: int = 0) -> np.ndarray:
    """Logits with many ties, as bf16 gives them, and some tokens that cannot be."""
    found = np.random.default_rng(seed).normal(0, 3, (count, VOCAB)).astype(np.float32).round(1)
    found[:, 7] = -np.inf
    return found


def name(device: torch.device, logits: np.ndarray, samplers: list, positions=None, masked=()) -> np.ndarray:
    at = np.arange(len(logits)) if positions is None else np.asarray(positions)
    return Naming(VOCAB, masked, device).name(torch.tensor(logits, device=device), samplers, at)


def test_greedy_tokens_are_the_first_of_the_highest(device: torch.device) -> None:
    logits = rows(200)
    assert name(device, logits, [GREEDY] * 200).tolist() == [argmax(row) for row in logits]
    assert name(device, np.zeros((3, VOCAB), np.float32), [GREEDY] * 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize("temperature", [0.0005, 0.3, 1.0, 5.0])
def test_keyed_draws_are_the_hosts(device: torch.device, temperature: float) -> None:
    logits, sampling = rows(300), Sampling(temperature)
    positions = np.random.default_rng(1).integers(0, 1 << 20, 300)
    named = name(device, logits, [Sampler(sampling, KEY)] * 300, positions)
    assert named.tolist() == [
        keyed_draw(row, sampling, KEY, int(at)) for row, at in zip(logits, positions, strict=True)
    ]


def test_each_row_has_its_own_sampler_and_what_cuts_the_law_is_left_to_the_host(device: torch.device) -> None:
    logits = rows(6)
    other = noise_key(6, [1])
    cut = [Sampling(1.0, top_k=5), Sampling(1.0, top_p=0.9), Sampling(1.0, min_p=0.1)]
    samplers = [Sampler(Sampling(1.0), KEY), GREEDY, None, Sampler(Sampling(1.0), other), GREEDY, GREEDY]
    named = name(device, logits, samplers)
    assert named[1] == argmax(logits[1])
    assert named[0] == keyed_draw(logits[0], Sampling(1.0), KEY, 0)
    assert named[3] == keyed_draw(logits[3], Sampling(1.0), other, 3)
    assert named[2] == LOGITS
    assert name(device, logits[:3], [Sampler(s, KEY) for s in cut]).tolist() == [LOGITS] * 3


def test_masked_ids_are_never_named(device: torch.device) -> None:
    logits = rows(50)
    best = [argmax(row) for row in logits]
    named = name(device, logits, [GREEDY] * 50, masked=best)
    logits[:, best] = -np.inf
    assert named.tolist() == [argmax(row) for row in logits]


def test_logits_that_are_not_numbers_name_nothing(device: torch.device) -> None:
    logits = rows(4)
    logits[0, 3], logits[1], logits[2, 5] = np.nan, -np.inf, np.inf
    for sampler in (GREEDY, Sampler(Sampling(1.0), KEY)):
        named = name(device, logits, [sampler] * 4)
        assert named[:3].tolist() == [UNNAMED] * 3
        assert named[3] >= 0
    for decider in (Greedy(), Coupled(Sampling(1.0), KEY)):
        with pytest.raises(InternalFault, match="not a number"):
            decider.decide(named[0], 0, [])
        assert decider.decide(named[3], 0, []) == (named[3], False)


def test_an_engine_names_what_its_logits_say(tiny: Path, torch_engine: Callable[..., PagedEngine]) -> None:
    engine, told, sampling = torch_engine(tiny), torch_engine(tiny), Sampling(1.0)
    text = [3, 1, 4, 1, 5, 9, 2, 6] * 12  # more logits than one run of the head gives
    samplers = {"greedy": GREEDY, "keyed": Sampler(sampling, KEY), "law": None}
    for one in (engine, told):
        for session in samplers:
            one.open(session, text)
    logits = engine.forward([Segment(session, 0, text, len(text)) for session in samplers])
    said = told.forward([Segment(session, 0, text, len(text), s) for session, s in samplers.items()])
    assert said[0].tolist() == [argmax(row) for row in logits[0]]
    assert said[1].tolist() == [keyed_draw(row, sampling, KEY, i + 1) for i, row in enumerate(logits[1])]
    np.testing.assert_array_equal(said[2], logits[2])
