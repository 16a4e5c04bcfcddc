"""One channel a verifier, shared by all sessions that draft for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls


class Channels:
    """Opens a channel with its first user and closes it after its last."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._open: dict[str, tuple[grpc.aio.Channel, int]] = {}  # and how many use it

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def use(self, address: str) -> AsyncIterator[grpc.aio.Channel]:
        """The channel to `address`, for as long as the block runs."""
        channel, users = self._open.get(address) or (open_channel(address, self._tls), 0)
        self._open[address] = (channel, users + 1)
        try:
            yield channel
        finally:
            channel, users = self._open[address]
            if users > 1:
                self._open[address] = (channel, users - 1)
            else:
                del self._open[address]
                await channel.close()
