"""What the local stack says of its services."""

import pytest

from forerun.cli.cores import Shares
from forerun.cli.stack import Stack
from forerun.errors import Unavailable

pytestmark = pytest.mark.processes


async def test_the_processor_time_of_a_removed_service_stays_counted():
    async with Stack(shares=Shares(verifier=1, drafter=1)) as stack:
        drafter = stack.add_drafter("ngram")
        await stack.start([drafter])
        used = stack.cpu_seconds()
        await stack.remove([drafter])
        assert stack.services == []
        assert stack.cpu_seconds() >= used > 0


async def test_a_damaged_data_folder_is_named_with_what_to_do(tmp_path):
    (tmp_path / "appendonlydir").mkdir()
    (tmp_path / "appendonlydir" / "appendonly.aof.manifest").write_text("junk")
    async with Stack(shares=Shares(verifier=1, drafter=1)) as stack:
        store = stack.add_store(tmp_path)
        with pytest.raises(Unavailable) as refused:
            await stack.start([store])
    advice = f"if {tmp_path} is damaged: restore it from a copy, or choose another --data-dir"
    assert refused.value.message.splitlines()[-1] == advice
