"""The relay is a network: all that goes in comes out at the other end, later, in order, both ways."""

import asyncio

import pytest

from forerun.cli.bench.relay import Relay

HOUR_S = 3600.0


class Gate:
    """A pause that lasts until the test lets it go; remembers what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.reached.set()
        await self.opened.wait()


class Far:
    """What the relay's target has heard."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.ended = asyncio.Event()
        self.writer: asyncio.StreamWriter | None = None
        self.connected = asyncio.Event()
        self.grown = asyncio.Condition()

    async def accept(self, reader, writer):
        self.writer = writer
        self.connected.set()
        while chunk := await reader.read(100):
            async with self.grown:
                self.heard += chunk
                self.grown.notify_all()
        self.ended.set()
        writer.close()

    async def until(self, count: int) -> None:
        async with self.grown:
            await self.grown.wait_for(lambda: len(self.heard) >= count)


@pytest.fixture
async def far():
    far = Far()
    server = await asyncio.start_server(far.accept, "127.0.0.1", 0)
    far.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield far
    server.close()
    await server.wait_closed()


@pytest.fixture
async def make_relay(far):
    relays = []

    async def make(one_way_s: float = 0.0, **more) -> Relay:
        relay = Relay(one_way_s, **more)
        relay.target = far.address
        await relay.start()
        relays.append(relay)
        return relay

    yield make
    for relay in relays:
        await relay.close()


async def dial(relay: Relay):
    host, port = relay.address.split(":")
    return await asyncio.open_connection(host, int(port))


async def test_everything_arrives_in_order_both_ways_and_so_does_the_end(far, make_relay):
    reader, writer = await dial(await make_relay(0.001))
    there = b"".join(number.to_bytes(2, "big") for number in range(20_000))
    for start in range(0, len(there), 999):
        writer.write(there[start : start + 999])
        await asyncio.sleep(0)
    writer.write_eof()
    async with asyncio.timeout(30):
        await far.connected.wait()
        far.writer.write(there[::-1])
        await far.ended.wait()
        assert bytes(far.heard) == there
        assert await reader.read(-1) == there[::-1]
    writer.close()
    await writer.wait_closed()


async def test_a_chunk_waits_for_the_whole_delay_in_either_direction(far, make_relay):
    gate = Gate()
    reader, writer = await dial(await make_relay(HOUR_S, pause=gate))
    async with asyncio.timeout(30):
        await far.connected.wait()
        for send in (writer.write, far.writer.write):
            gate.reached.clear()
            send(b"late")
            await gate.reached.wait()
        assert bytes(far.heard) == b""
        # Two pauses, one a direction, each of the delay less the moment it took to get there.
        assert len(gate.asked) == 2
        assert all(HOUR_S / 2 < seconds <= HOUR_S for seconds in gate.asked)
        gate.opened.set()
        await far.until(4)
        assert await reader.readexactly(4) == b"late"
    writer.close()
    await writer.wait_closed()


async def test_chunks_under_way_together_arrive_together(far, make_relay):
    gate = Gate()
    relay = await make_relay(HOUR_S, pause=gate)
    _, writer = await dial(relay)
    async with asyncio.timeout(30):
        writer.write(b"first ")
        await gate.reached.wait()
        # The second is read while the first still travels; a shorter delay does not let it overtake.
        relay.one_way_s = 0.0
        writer.write(b"second")
        await writer.drain()
        gate.opened.set()
        await far.until(12)
    assert bytes(far.heard) == b"first second"
    assert len(gate.asked) == 1
    writer.close()
    await writer.wait_closed()


async def test_without_a_delay_nothing_pauses(far, make_relay):
    gate = Gate()
    _, writer = await dial(await make_relay(0.0, pause=gate))
    writer.write(b"now")
    async with asyncio.timeout(30):
        await far.until(3)
    assert gate.asked == []
    writer.close()
    await writer.wait_closed()


async def test_a_caller_is_cut_off_when_nothing_listens_behind_the_relay(far, make_relay):
    relay = await make_relay()
    relay.target = "127.0.0.1:1"
    reader, writer = await dial(relay)
    async with asyncio.timeout(30):
        assert await reader.read(1) == b""
    writer.close()
    await writer.wait_closed()


async def test_a_closed_relay_cuts_its_connections(far, make_relay):
    relay = await make_relay()
    reader, writer = await dial(relay)
    async with asyncio.timeout(30):
        await far.connected.wait()
        await relay.close()
        assert await reader.read(1) == b""
        await far.ended.wait()
    writer.close()
    await writer.wait_closed()
