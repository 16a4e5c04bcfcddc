"""A network of a chosen delay between two processes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from forerun.wire.address import Address

CHUNK_BYTES = 1 << 16
MOST_CHUNKS = 4096  # under way in one direction; beyond, the sender is held up as by a full pipe

Pause = Callable[[float], Awaitable[object]]


class Relay:
    """Carries TCP connections to `target`, each chunk `one_way_s` after it came, in both directions, in order.

    `target` (host:port) may be set, and `one_way_s` changed, at any time. Bandwidth is not limited.
    """

    def __init__(self, one_way_s: float = 0.0, *, pause: Pause = asyncio.sleep) -> None:
        self.target = ""
        self.one_way_s = one_way_s
        self.address = ""  # host:port, once started
        self.num_connections = 0  # ever
        self._pause = pause
        self._connections: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Listen on a free port of loopback; return host:port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self.address

    async def close(self) -> None:
        """Nothing listens and every connection is cut."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        connection = asyncio.create_task(self._connect(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _connect(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        writers = [near_out]
        try:
            target = Address.parse(self.target, "target")
            far, far_out = await asyncio.open_connection(target.host, target.port)
            writers.append(far_out)
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._carry(near, far_out))
                directions.create_task(self._carry(far, near_out))
        except* OSError:
            pass  # one end is gone: cutting the other off says so
        finally:
            for writer in writers:
                writer.close()
            for writer in writers:
                with suppress(OSError):
                    await writer.wait_closed()

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Carry one direction until its end has been carried too."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MOST_CHUNKS)
        receiving = asyncio.create_task(self._receive(source, under_way))
        clock = asyncio.get_running_loop().time
        try:
            while True:
                due, chunk = await under_way.get()
                if (left := due - clock()) > 0:
                    await self._pause(left)
                if not chunk:
                    sink.write_eof()
                    return
                sink.write(chunk)
                await sink.drain()
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)

    async def _receive(
        self, source: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Note each chunk's time of arrival at the other end; an empty one is the end."""
        clock = asyncio.get_running_loop().time
        while True:
            try:
                chunk = await source.read(CHUNK_BYTES)
            except OSError:
                chunk = b""
            await under_way.put((clock() + self.one_way_s, chunk))
            if not chunk:
                return
