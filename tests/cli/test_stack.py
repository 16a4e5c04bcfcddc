"""What the local stack says of its services."""

import pytest

from forerun.cli.cores import Shares
from forerun.cli.stack import Stack

pytestmark = pytest.mark.processes


async def test_the_processor_time_of_a_removed_service_stays_counted():
    async with Stack(shares=Shares(verifier=1, drafter=1)) as stack:
        drafter = stack.add_drafter("ngram")
        await stack.start([drafter])
        used = stack.cpu_seconds()
        await stack.remove([drafter])
        assert stack.services == []
        assert stack.cpu_seconds() >= used > 0
