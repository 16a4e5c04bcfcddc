"""A verifier that cannot be reached: why, who is told, and how long it is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from unittest.mock import AsyncMock, Mock

import pytest
from structlog.testing import capture_logs

from forerun.errors import InternalFault, Unavailable
from forerun.wire.address import Address
from forerun.wire.tls import Tls
from forerun.wire.trouble import reason_of
from gateway import pool, replica
from gateway.misfits import Misfits
from gateway.router import VERIFIER_SERVICE, Router
from tests.gateway.replicas import MODEL, SOON, Fleet, model, until

NOBODY = "127.0.0.1:1"


def warnings(logs: list) -> list[tuple[str, str]]:
    return [
        (log["address"], log["reason"])
        for log in logs
        if (log["event"], log["log_level"]) == ("replica not reached", "warning")
    ]


async def troubled(router: Router, number: int = 1) -> dict[str, str]:
    await until(router, lambda: len(router.troubles()) == number)
    return router.troubles()


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(replica, "LAST_RETRY_S", 0.001)


async def test_who_asks_is_told_address_and_reason(routing) -> None:
    router = await routing(NOBODY)
    await troubled(router)
    with pytest.raises(Unavailable) as refused:
        await router.verifier("s", model="", timeout_s=0)
    assert refused.value.message == f"no verifier is ready now: {NOBODY} connection refused"
    with pytest.raises(Unavailable, match=rf"^no verifier is ready now: {NOBODY} connection refused$"):
        await router.tokenizer("")


async def test_many_addresses_are_not_all_told(routing) -> None:
    router = await routing(",".join(f"127.0.0.1:{port}" for port in range(1, 8)))
    await troubled(router, 7)
    assert router.none_serves("").message.endswith("127.0.0.1:4 connection refused, 3 more")


@pytest.mark.parametrize(
    ("server", "client", "reason"),
    [
        ("127.0.0.1", None, "closed the connection in the handshake"),
        (None, "gateway.test", "TLS handshake failed: it does not speak TLS"),
        ("big.lan", "gateway.test", "TLS handshake failed: its certificate names another host"),
    ],
    ids=["plain against TLS", "TLS against plain", "another name"],
)
async def test_a_handshake_that_fails_says_how(fleet, routing, issue, server, client, reason: str) -> None:
    address, _ = await fleet.verifier(tls=issue(server) if server else None)
    router = await routing(address, tls=issue(client) if client else Tls())
    assert (await troubled(router))[address].startswith(reason)


async def test_an_authority_of_its_own_is_not_trusted(fleet, routing, make_authority) -> None:
    address, _ = await fleet.verifier(tls=make_authority()("127.0.0.1"))
    router = await routing(address, tls=make_authority()("gateway.test"))
    assert (await troubled(router))[address] == "TLS handshake failed: its certificate is not trusted"


async def test_a_service_of_another_kind_is_named_as_such(fleet, routing) -> None:
    address = await fleet.drafter()
    router = await routing(address)
    assert (await troubled(router))[address] == "does not serve forerun.v1.VerifierService"


async def test_a_name_that_does_not_resolve_is_told_and_logged_once(routing, monkeypatch) -> None:
    monkeypatch.setattr(pool, "RESOLVE_EVERY_S", 0.001)
    tries = asyncio.Queue[None]()

    async def resolve(name: Address) -> list[str]:
        tries.put_nowait(None)
        raise OSError("no such name")

    with capture_logs() as logs:
        router = await routing("dns:///verifiers.test:7001", resolve=resolve)
        for _ in range(4):
            await tries.get()
    assert router.none_serves("").message.endswith(": verifiers.test:7001 name not resolved")
    assert [log["event"] for log in logs].count("name not resolved") == 1


@pytest.mark.usefixtures("_impatient")
async def test_a_reason_is_logged_when_it_changes_and_not_at_every_attempt(
    fleet, routing, issue, monkeypatch
) -> None:
    tls = issue("127.0.0.1")
    address, _ = await fleet.verifier(tls=tls)
    await fleet.stop(address)
    dialled, dial = asyncio.Queue[str](), pool.open_channel

    def noted(*args, **kwargs):
        dialled.put_nowait(args[0])
        return dial(*args, **kwargs)

    monkeypatch.setattr(pool, "open_channel", noted)
    with capture_logs() as logs:
        router = await routing(address)
        for _ in range(5):
            await dialled.get()
        assert warnings(logs) == [(address, "connection refused")]
        assert {log["of"] for log in logs if log["log_level"] == "warning"} == {VERIFIER_SERVICE}
        await fleet.verifier(tls=tls, at=address)
        await until(router, lambda: "handshake" in router.troubles()[address])
    assert [reason[:17] for _, reason in warnings(logs)] == ["connection refuse", "closed the connec"]


async def test_a_first_verifier_that_cannot_be_reached_is_not_waited_for(routing) -> None:
    router = await routing(NOBODY)
    assert await router.wait_ready(10_000, unreached_s=0) is False  # or the test never ends


@pytest.mark.usefixtures("_impatient")
async def test_a_verifier_that_starts_is_waited_for(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    await fleet.stop(address)
    router = await routing(address)
    await troubled(router)
    await fleet.verifier(at=address, serving=False)
    await troubled(router, 0)
    waiting = asyncio.create_task(router.wait_ready(SOON, unreached_s=0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await fleet.set_serving(address, True)
    assert await waiting is True


@pytest.mark.usefixtures("_impatient")
async def test_a_verifier_that_served_and_was_lost_is_waited_for(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    router = await routing(address)
    assert await router.wait_ready(SOON)
    await fleet.stop(address)
    await until(router, lambda: router.troubles().get(address) == "connection refused")
    waiting = asyncio.create_task(router.wait_ready(SOON, unreached_s=0))
    await asyncio.sleep(0)
    assert not waiting.done()
    await fleet.verifier(at=address)
    assert await waiting is True


@pytest.mark.usefixtures("_impatient")
async def test_a_pod_whose_address_left_with_it_is_waited_for_under_another(
    fleet, routing, monkeypatch
) -> None:
    monkeypatch.setattr(pool, "RESOLVE_EVERY_S", 0.001)
    first, _ = await fleet.verifier()
    records = [first]

    async def resolve(name: Address) -> list[str]:
        return list(records)

    router = await routing("dns:///verifiers.test:7001", resolve=resolve)
    assert await router.wait_ready(SOON)
    records[:] = [NOBODY]
    await until(router, lambda: list(router.troubles()) == [NOBODY])
    waiting = asyncio.create_task(router.wait_ready(SOON, unreached_s=0))
    await asyncio.sleep(0)
    assert not waiting.done()
    records[:] = [(await fleet.verifier())[0]]
    assert await waiting is True


async def test_a_drafter_of_another_vocabulary_is_warned_of_once(fleet: Fleet, routing: Callable) -> None:
    verifier, _ = await fleet.verifier()
    stranger = await fleet.drafter(model(name="small", vocab_fingerprint="cd" * 32))
    await fleet.drafter(model(vocab_fingerprint=""), "ngram")
    await fleet.drafter()
    with capture_logs() as logs:
        router = await routing(verifier, ",".join(a for a in fleet.servers if a != verifier))
        for serving in (True, False, True):
            await fleet.set_serving(verifier, serving)
            await until(
                router,
                lambda serving=serving: (
                    bool(router.models()) == serving and len(router._drafters.serving()) == 3
                ),
            )
    told = [log for log in logs if "vocabulary" in log["event"]]
    assert told == [
        {
            "event": f"drafter {stranger} drafts for another vocabulary than target bell",
            "log_level": "warning",
            "drafter_vocabulary": "cd" * 6,
            "target_vocabulary": "ab" * 6,
        }
    ]


def test_a_drafter_that_fits_one_of_several_targets_is_no_misfit() -> None:
    def at(address: str) -> replica.Replica:
        return replica.Replica(address, "any", AsyncMock(), Mock(), Mock())

    other = model(name="city", vocab_fingerprint="cd" * 32)
    targets = [(at("127.0.0.1:1"), MODEL), (at("127.0.0.1:2"), other)]
    with capture_logs() as logs:
        Misfits().look([(at("127.0.0.1:3"), other)], targets)
        assert logs == []
        Misfits().look([(at("127.0.0.1:3"), other)], targets[:1])
        assert len(logs) == 1


def test_an_error_of_our_own_is_told_by_its_reason_alone() -> None:
    assert reason_of(InternalFault("secret", reason="BROKEN_MODEL")) == "broken model"
