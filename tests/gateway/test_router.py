from __future__ import annotations

import asyncio

import grpc
import pytest

from forerun.core.types import TokenizerFiles
from forerun.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable
from forerun.v1 import verifier_pb2, verifier_pb2_grpc
from forerun.wire.address import Address
from forerun.wire.tls import Tls
from gateway import pool, replica
from gateway.router import Router
from gateway.targets import Targets
from tests.gateway.replicas import MODEL, SOON, model, until


def serving(router: Router) -> set[str]:
    return {r.address for r, _ in router._verifiers.serving()}


async def choose(router: Router, session: str = "s", **how: object) -> str:
    return (await router.verifier(session, model="", timeout_s=SOON, **how)).address


async def test_a_verifier_is_waited_for_and_then_known_by_its_model(fleet, routing) -> None:
    router = await routing("127.0.0.1:1")
    assert router.models() == []
    with pytest.raises(Unavailable) as refused:
        await router.verifier("s", model="", timeout_s=0)
    assert (refused.value.reason, refused.value.retry_after_s) == ("NO_VERIFIER", 2.0)
    assert refused.value.message == "no verifier is ready now"
    address, _ = await fleet.verifier()
    router = await routing(address)
    assert await router.wait_ready(SOON)
    assert router.models() == [MODEL]


async def test_a_verifier_that_starts_later_ends_the_wait(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    await fleet.stop(address)
    router = await routing(address)
    waiting = asyncio.create_task(choose(router))
    await fleet.verifier(at=address)
    assert await waiting == address


async def test_load_is_spread_and_failed_ones_are_left_out(fleet, routing) -> None:
    addresses = {(await fleet.verifier())[0] for _ in range(3)}
    router = await routing(",".join(addresses))
    await until(router, lambda: serving(router) == addresses)
    busy = await router.verifier("a", model="bell", timeout_s=SOON)
    with busy.in_use():
        assert busy.num_running == 1
        others = {await choose(router, s) for s in "bcdef"}
        assert others == addresses - {busy.address}
    assert busy.num_running == 0
    for failed in addresses:
        assert await choose(router, "fresh", exclude={failed}) != failed
    assert await choose(router, "fresh", exclude=addresses) in addresses


async def test_a_conversation_returns_to_its_verifier(fleet, routing) -> None:
    addresses = {(await fleet.verifier())[0] for _ in range(3)}
    router = await routing(",".join(addresses))
    await until(router, lambda: serving(router) == addresses)
    home = await router.verifier("conversation", model="", timeout_s=SOON)
    with home.in_use():
        assert {await choose(router, "conversation") for _ in range(4)} == {home.address}
    stored = min(addresses - {home.address})
    assert await choose(router, "known to the store only", prefer=stored) == stored


async def test_failover_prefers_equal_numerics_to_the_idle_one(fleet, routing) -> None:
    equal = {(await fleet.verifier())[0] for _ in range(2)}
    other, _ = await fleet.verifier(model(numerics="r1/bf16/cuda"))
    router = await routing(",".join([*equal, other]))
    await until(router, lambda: serving(router) == equal | {other})
    lost, alike = sorted(equal)
    loaded = await router.verifier("x", model="", timeout_s=SOON, exclude={lost, other})
    with loaded.in_use():
        assert await choose(router, "y", exclude={lost}, numerics=MODEL.numerics) == alike
    assert await choose(router, "y", exclude=equal, numerics=MODEL.numerics) == other


async def test_only_verifiers_whose_context_holds_the_answer_are_chosen(fleet, routing) -> None:
    small, _ = await fleet.verifier()
    large, _ = await fleet.verifier(model(max_context=100))
    router = await routing(f"{small},{large}")
    await until(router, lambda: serving(router) == {small, large})
    assert [one.max_context for one in router.models()] == [100]
    assert {await choose(router, s, context=64) for s in "abcd"} == {small, large}
    assert {await choose(router, s, context=65, prefer=small) for s in "abcd"} == {large}
    await fleet.stop(large)
    await until(router, lambda: serving(router) == {small})
    assert [one.max_context for one in router.models()] == [64]
    with pytest.raises(Unavailable, match="no verifier with a context of 65 tokens serves 'bell' now"):
        await router.verifier("s", model="bell", context=65, timeout_s=0)


async def test_other_models_and_vocabularies_are_refused(fleet, routing) -> None:
    bell, _ = await fleet.verifier()
    city, _ = await fleet.verifier(model(name="city", vocab_fingerprint="cd" * 32))
    router = await routing(f"{bell},{city}")
    await until(router, lambda: serving(router) == {bell, city})
    assert (await router.verifier("s", model="city", timeout_s=SOON)).address == city
    with pytest.raises(NotFound) as unknown:
        await router.verifier("s", model="river", timeout_s=SOON)
    assert (unknown.value.reason, unknown.value.field) == ("MODEL_NOT_FOUND", "model")
    with pytest.raises(InvalidRequest, match="bell, city"):
        await choose(router)
    with pytest.raises(Unavailable):
        await router.verifier("s", model="bell", vocab_fingerprint="cd" * 32, timeout_s=0)


async def test_health_decides_and_not_the_connection(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    router = await routing(address)
    assert await choose(router) == address
    await fleet.set_serving(address, False)
    await until(router, lambda: not serving(router))
    with pytest.raises(Unavailable, match="bell"):  # known by name, only away
        await router.verifier("s", model="bell", timeout_s=0)
    await fleet.set_serving(address, True)
    assert await choose(router) == address


async def test_a_replica_that_came_back_is_described_anew_on_a_new_channel(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    router = await routing(address)
    first = await router.verifier("s", model="", timeout_s=SOON)
    with first.in_use() as old:
        pass
    await fleet.stop(address)
    await until(router, lambda: not serving(router))
    await fleet.verifier(model(name="city", revision="r2"), at=address)
    second = await router.verifier("s", model="city", timeout_s=SOON)
    assert second is first
    with second.in_use() as new:
        assert new is not old
        reply = await verifier_pb2_grpc.VerifierServiceStub(new).GetModel(
            verifier_pb2.VerifierServiceGetModelRequest(), timeout=SOON
        )
    assert reply.model.revision == "r2"


async def test_a_reported_failure_cuts_no_other_call_and_heals(fleet, routing) -> None:
    address, servicer = await fleet.verifier()
    router = await routing(address)
    chosen = await router.verifier("s", model="", timeout_s=SOON)
    with chosen.in_use() as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(
            verifier_pb2.DecodeRequest(), timeout=SOON
        )
        assert (await call.read()).started.epoch == 1
        router.report_failure(chosen)
        assert not serving(router)
        assert await choose(router) == address  # its health spoke again
        servicer.may_end.set()
        assert (await call.read()).settled[0].base == 7
        assert await call.read() is grpc.aio.EOF


async def test_a_lost_replica_says_so_instead_of_giving_a_dead_channel(fleet, routing, monkeypatch) -> None:
    monkeypatch.setattr(replica, "LAST_RETRY_S", 1000.0)
    monkeypatch.setattr(replica, "FIRST_RETRY_S", 1000.0)
    address, _ = await fleet.verifier()
    router = await routing(address)
    chosen = await router.verifier("s", model="", timeout_s=SOON)
    await fleet.stop(address)
    await until(router, lambda: not serving(router))
    with pytest.raises(Unavailable) as refused, chosen.in_use():
        pass
    assert refused.value.reason == "REPLICA_LOST"


async def test_a_name_stands_for_its_addresses_as_they_come_and_go(fleet, routing, monkeypatch) -> None:
    monkeypatch.setattr(pool, "RESOLVE_EVERY_S", 0.01)
    first, servicer = await fleet.verifier(at="127.0.0.1:0")
    port = first.rpartition(":")[2]
    second, _ = await fleet.verifier(at=f"127.0.0.2:{port}")
    records = [first]

    async def resolve(name: Address) -> list[str]:
        assert name == Address("verifiers.test", int(port))
        if not records:
            raise OSError("no such name now")
        return list(records)

    router = await routing(f"dns:///verifiers.test:{port}", resolve=resolve)
    assert await choose(router) == first
    records[:] = [first, second]
    await until(router, lambda: serving(router) == {first, second})
    leaving = await router.verifier("s", model="", timeout_s=SOON, prefer=first)
    with leaving.in_use() as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(
            verifier_pb2.DecodeRequest(), timeout=SOON
        )
        await call.read()
        records[:] = [second]
        await until(router, lambda: serving(router) == {second})
        servicer.may_end.set()
        assert (await call.read()).settled[0].base == 7  # it left the name, not its calls
    records.clear()
    assert await choose(router) == second


async def test_localhost_resolves_through_the_systems_own_resolver(fleet, routing) -> None:
    address, _ = await fleet.verifier()
    router = await routing(f"dns:///localhost:{address.rpartition(':')[2]}")
    assert await choose(router) == address


async def test_drafters_fit_the_vocabulary_and_none_is_normal(fleet, routing) -> None:
    verifier, _ = await fleet.verifier()
    fitting = await fleet.drafter()
    await fleet.drafter(model(vocab_fingerprint="cd" * 32))
    lookup = await fleet.drafter(model(vocab_fingerprint=""), "ngram")
    router = await routing(verifier, ",".join(a for a in fleet.servers if a != verifier))
    await until(router, lambda: len(router._drafters.serving()) == 3)
    ask = {"vocab_fingerprint": MODEL.vocab_fingerprint}
    both = router.drafters("s", limit=5, **ask)
    assert {d.address for d in both} == {fitting, lookup}
    assert {d.source for d in both} == {"model:small", "ngram"}
    home = router.drafter("t", **ask)
    with home.in_use():
        assert router.drafter("t", **ask) is home  # holds this session's KV
        assert router.drafter("other", **ask) is not home
    assert router.drafter("t", exclude={fitting, lookup}, **ask) is None


async def test_without_drafters_there_is_nobody_to_ask(fleet, routing) -> None:
    verifier, _ = await fleet.verifier()
    router = await routing(verifier)
    assert router.drafter("s", vocab_fingerprint=MODEL.vocab_fingerprint) is None


async def test_the_tokenizer_is_fetched_once_and_outlives_its_verifier(
    fleet, routing, small_files: TokenizerFiles
) -> None:
    address, servicer = await fleet.verifier(files=small_files)
    router = await routing(address)
    await router.wait_ready(SOON)
    first, second = await asyncio.gather(router.tokenizer("bell"), router.tokenizer(""))
    assert first is second
    assert servicer.num_fetches == 1
    await fleet.stop(address)
    await until(router, lambda: not serving(router))
    assert await router.tokenizer("bell") is first
    with pytest.raises(Unavailable, match="no verifier is ready now"):
        await router.tokenizer("")


async def test_a_failed_fetch_is_tried_again(fleet, routing, small_files: TokenizerFiles) -> None:
    address, servicer = await fleet.verifier()
    router = await routing(address)
    await router.wait_ready(SOON)
    with pytest.raises(Unavailable):
        await router.tokenizer("bell")
    servicer.files = small_files
    assert (await router.tokenizer("bell")).encode("bell")


async def test_a_tokenizer_of_another_vocabulary_is_refused(fleet, routing, small_files) -> None:
    address, _ = await fleet.verifier(model(vocab_fingerprint="cd" * 32), files=small_files)
    router = await routing(address)
    await router.wait_ready(SOON)
    with pytest.raises(FailedPrecondition) as refused:
        await router.tokenizer("bell")
    assert refused.value.reason == "VOCABULARY_MISMATCH"


async def test_a_pod_dialled_by_address_is_checked_under_its_services_name(fleet, routing, issue) -> None:
    address, _ = await fleet.verifier(tls=issue("verifiers.test"))

    async def resolve(name: Address) -> list[str]:
        return [address]

    port = address.rpartition(":")[2]
    router = await routing(f"dns:///verifiers.test:{port}", tls=issue("gateway.test"), resolve=resolve)
    assert await choose(router) == address


@pytest.mark.parametrize("flag", ["", " , ", "host", "dns:///name", "host:0", "host:99999"])
def test_flags_that_name_no_verifier_are_refused(flag: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Targets.parse(flag, "verifiers") if flag.strip(" ,") else Router(flag, "", Tls())
    assert refused.value.field == "verifiers"


async def test_closing_ends_every_watch_and_cancels_what_runs(fleet) -> None:
    address, _ = await fleet.verifier()
    router = Router(address, "", Tls())
    await router.start()
    chosen = await router.verifier("s", model="", timeout_s=SOON)
    with chosen.in_use() as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Decode(
            verifier_pb2.DecodeRequest(), timeout=SOON
        )
        await call.read()
        await router.close()
        assert await call.code() is grpc.StatusCode.CANCELLED
    assert not router.models()
