"""A call to a verifier is read beside the commits; what ends the reading is never lost."""

import asyncio

import pytest

from gateway.decoding import Decoding


class FaultyCall:
    """Stands for a call whose library fails in a way nobody foresaw."""

    async def read(self):
        raise RuntimeError("unforeseen")


async def test_an_unforeseen_fault_of_the_reading_is_raised_where_tokens_are_waited_for():
    decoding = Decoding(FaultyCall(), stall_s=60)
    reading = asyncio.create_task(decoding.read_on())
    with pytest.raises(RuntimeError, match="unforeseen"):
        async with asyncio.timeout(30):
            await decoding.settled()
    await reading
