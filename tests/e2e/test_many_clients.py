"""Concurrent clients get what each would get alone."""

import asyncio

import pytest

from forerun.core.types import Sampling
from gateway.request import GenerationRequest

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]

CLIENTS = 32


def request(number: int) -> GenerationRequest:
    """Prompts of many lengths, half of them sampled, all repetitive so that look-up has something to say."""
    ids = tuple((number * 7 + position % (3 + number % 5)) % 50 + 1 for position in range(4 + 3 * number))
    sampling = Sampling(temperature=0.8) if number % 2 else Sampling()
    return GenerationRequest(
        token_ids=ids,
        max_tokens=48,
        sampling=sampling,
        seed=number if number % 2 else None,
        ignore_end_tokens=True,
    )


async def test_32_concurrent_clients_match_their_single_runs(tiny):
    async with tiny.client() as client:
        alone = [await client.answer(request(number)) for number in range(CLIENTS)]
        together = await asyncio.gather(*(client.answer(request(number)) for number in range(CLIENTS)))
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert all(len(one.token_ids) == 48 for one in together)
    assert sum(one.complete()[1].speculation.num_accepted for one in together) > 0
