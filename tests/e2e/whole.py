"""A whole stack of real processes, and ways to read an answer while some of them are lost."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from forerun.cli.client import Answer, Client
from forerun.cli.stack import LocalService, Stack
from forerun.errors import ForerunError, Unavailable
from gateway.request import GenerationRequest

# A prompt whose answer repeats it, so that look-up drafts are accepted all along.
QUOTE = (
    "Repeat this text exactly, twice: The lighthouse at Tarn Point will be closed to visitors from the first "
    "of March until the end of April. During these weeks the old copper roof will be replaced with slate."
)


@dataclass(frozen=True)
class Whole:
    """A running stack and the two gateways over it."""

    stack: Stack
    store: LocalService
    verifiers: list[LocalService]
    drafters: list[LocalService]
    gateways: list[LocalService]

    def client(self, number: int = 0) -> Client:
        return Client(self.gateways[number].address)


async def whole(stack: Stack, *, verifiers: int, drafters: int, gateways: int, lookup: bool = False) -> Whole:
    """`lookup`: the verifiers also draft by themselves, which is never late."""
    store = stack.add_store()
    targets = [stack.add_verifier("--name", "target", lookup=lookup) for _ in range(verifiers)]
    guessers = [stack.add_drafter("ngram") for _ in range(drafters)]
    await stack.start(stack.services)
    doors = [stack.add_gateway(store.address, targets, guessers) for _ in range(gateways)]
    await stack.start(doors)
    return Whole(stack, store, targets, guessers, doors)


async def read_until(
    client: Client, request: GenerationRequest, enough: Callable[[Answer], bool], then
) -> Answer:
    """The answer as far as it came; `then` is awaited once, when `enough`. A lost gateway just ends it."""
    answer, done = Answer(), False
    try:
        async for event in client.generate(request):
            answer.take(event)
            if not done and enough(answer):
                done = True
                await then()
    except Unavailable:
        if not done:
            raise
    assert done, "the answer ended before anything could happen to it"
    return answer


async def resume(client: Client, answer: Answer) -> Answer:
    """The same answer, read to its end from where it stands; retried while the services come back."""
    async with asyncio.timeout(60):
        while answer.finished is None:
            try:
                async for event in client.resume(answer.opened.session_id, len(answer.token_ids)):
                    answer.take(event)
            except ForerunError as fault:
                if fault.retry_after_s is None and not isinstance(fault, Unavailable):
                    raise
    return answer
