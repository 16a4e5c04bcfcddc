"""Whole stacks of real processes, started once a run."""

import sys
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from forerun.cli.cores import Shares
from forerun.cli.launch import readable
from forerun.cli.stack import Stack
from forerun.engine.convert import ensure_smollm2
from forerun.engine.random_model import save_tiny_model
from tests.e2e.whole import Whole, whole


def to_stderr(name: str, line: str) -> None:
    """What services log is shown with the test that fails."""
    sys.stderr.write(f"{name:>10} {readable(line)}\n")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def smollm2() -> AsyncIterator[Whole]:
    """SmolLM2 behind two verifiers, one drafter and two gateways."""
    ensure_smollm2()
    async with Stack(shares=Shares(verifier=1, drafter=1), log=to_stderr) as stack:
        yield await whole(stack, verifiers=2, drafters=1, gateways=2)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_model(folder)
    return folder


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def tiny(tiny_folder) -> AsyncIterator[Whole]:
    """A tiny random model behind one verifier, one drafter and one gateway."""
    shares = Shares(verifier=1, drafter=1)
    async with Stack(model=str(tiny_folder), dtype="float32", shares=shares, log=to_stderr) as stack:
        yield await whole(stack, verifiers=1, drafters=1, gateways=1, lookup=True)
