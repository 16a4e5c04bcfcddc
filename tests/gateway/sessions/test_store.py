from __future__ import annotations

import asyncio
import secrets
import socket
from dataclasses import replace

import pytest

from forerun.core.types import Exactness, FinishReason, Origin, PassRecord, Settled
from forerun.errors import FailedPrecondition, InvalidRequest, NotFound, Unavailable
from gateway.store.connection import connect
from gateway.store.entry import Entry
from gateway.store.session import SessionStatus
from gateway.store.store import Begun, Claim, Committed, Outcome

PROMPT = (7, 8, 2**32 - 1)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def new_id() -> str:
    return secrets.token_hex(6)


def entry(base: int, *tokens: int, finish: FinishReason = FinishReason.NONE, cut: int | None = None) -> Entry:
    record = PassRecord(plan_token_ids=(5,), target_token_ids=tokens, num_tested=1, pass_us=900)
    return Entry((Settled(base, tokens, (Origin.PLAIN,) * len(tokens), finish, record),), cut)


async def test_session_reads_back_as_it_was_created(store, turn):
    sid = new_id()
    assert await store.create(sid, turn, PROMPT)
    session = await store.read(sid)
    assert session.turn == turn
    assert session.token_ids == PROMPT
    assert (session.status, session.epoch, session.owner) == (SessionStatus.RUNNING, 1, store.owner)
    assert 0 < session.lease_ms <= 5000
    assert session.cut is None
    assert session.exact is None


async def test_many_readers_at_once_are_no_outage(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    sessions = await asyncio.gather(*(store.read(sid) for _ in range(300)))
    assert all(session.token_ids == PROMPT for session in sessions)


async def test_keys_are_those_of_the_design_and_share_one_hash_tag(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4))
    keys = {key.decode() async for key in store._client.scan_iter(f"*{sid}*")}
    assert keys == {f"forerun:{{{sid}}}:{part}" for part in ("meta", "tokens", "events")}
    assert (
        await store._client.get(f"forerun:{{{sid}}}:tokens")
        == b"\x07\0\0\0\x08\0\0\0\xff\xff\xff\xff\x04\0\0\0"
    )
    ((entry_id, _),) = await store._client.xrange(f"forerun:{{{sid}}}:events")
    assert entry_id == b"4-0"


async def test_every_key_expires(make_store, shared_valkey, turn):
    store = make_store(shared_valkey.url, ttl_s=100)
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4))
    await store.claim_request(f"r{sid}", sid)
    keys = [key async for key in store._client.scan_iter(f"*{sid}*")]
    assert len(keys) == 4
    for key in keys:
        assert 90 < await store._client.ttl(key) <= 100


async def test_a_commit_renews_expiry(make_store, shared_valkey, turn):
    short, long = make_store(shared_valkey.url, ttl_s=50), make_store(shared_valkey.url, ttl_s=500)
    sid = new_id()
    await short.create(sid, turn, PROMPT)
    await long.commit(sid, 1, entry(3, 4))
    for part in ("meta", "tokens", "events"):
        assert await short._client.ttl(f"forerun:{{{sid}}}:{part}") > 400


async def test_creating_twice_changes_nothing(store, turn):
    sid = new_id()
    assert await store.create(sid, turn, PROMPT)
    assert not await store.create(sid, replace(turn, max_tokens=1), (1,))
    session = await store.read(sid)
    assert session.turn.max_tokens == 16
    assert session.token_ids == PROMPT


async def test_second_request_of_an_id_gets_the_first_ones_session(store, make_store, shared_valkey):
    other = make_store(shared_valkey.url)
    request, mine, theirs = new_id(), new_id(), new_id()
    assert await store.claim_request(request, mine) == mine
    assert await other.claim_request(request, theirs) == mine
    assert await store.claim_request(request, mine) == mine


async def test_commit_with_another_epoch_is_fenced(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    assert (await store.take_over(sid, held_epoch=1)).epoch == 2
    assert (await store.commit(sid, 1, entry(3, 4))).outcome is Outcome.FENCED
    assert (await store.commit(sid, 3, entry(3, 4))).outcome is Outcome.FENCED
    assert await store.commit(sid, 2, entry(3, 4)) == Committed(Outcome.OK, 4)


async def test_commit_to_an_unknown_session_is_fenced(store):
    assert (await store.commit(new_id(), 1, entry(3, 4))).outcome is Outcome.FENCED


async def test_commit_beyond_the_end_says_where_to_send_from(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    assert await store.commit(sid, 1, entry(5, 4)) == Committed(Outcome.SHORT, 3)


async def test_replays_are_ok_and_change_nothing(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    first, last = entry(3, 4, 5), entry(5, 6, finish=FinishReason.STOP, cut=9)
    for item in (first, first, last, first, last):
        assert (await store.commit(sid, 1, item)).outcome is Outcome.OK
    session = await store.read(sid, with_entries=True)
    assert session.answer_ids == (4, 5, 6)
    assert session.entries == (first, last)
    assert (session.finish_reason, session.cut) == (FinishReason.STOP, 9)


@pytest.mark.parametrize(
    "other",
    [
        entry(3, 4, 9),  # other tokens
        entry(3, 4, 5, 6),  # held in part
        entry(4, 5, 6),
        entry(3, 4, 5, finish=FinishReason.STOP),  # an end that is not there
    ],
)
async def test_other_tokens_at_the_same_place_conflict(store, turn, other):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, 5))
    assert await store.commit(sid, 1, other) == Committed(Outcome.CONFLICT, 5)
    assert (await store.read(sid)).answer_ids == (4, 5)


async def test_nothing_is_added_after_the_end(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, finish=FinishReason.LENGTH))
    assert (await store.commit(sid, 1, entry(4, 5))).outcome is Outcome.CONFLICT
    assert (await store.read(sid)).answer_ids == (4,)


async def test_an_end_without_tokens_has_an_entry_of_its_own(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4))
    end = Entry((Settled(4, (), (), FinishReason.STOP),), cut=2)
    assert await store.commit(sid, 1, end) == Committed(Outcome.OK, 4)
    assert await store.commit(sid, 1, end) == Committed(Outcome.OK, 4)
    assert await store.tail(await store.read(sid), 4) == [end]
    assert (await store.read(sid, with_entries=True)).entries == (entry(3, 4), end)


async def test_finished_session_is_owned_by_nobody(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, finish=FinishReason.STOP))
    session = await store.read(sid)
    assert session.status is SessionStatus.FINISHED
    assert not session.is_owned
    assert (await store.take_over(sid)).claim is Claim.FINISHED
    assert await store.heartbeat(sid, 1)  # nobody else's
    assert not (await store.read(sid)).is_owned
    assert not await store.heartbeat(sid, 2)


async def test_commit_and_heartbeat_renew_the_lease(make_store, shared_valkey, turn):
    brief, long = make_store(shared_valkey.url, lease_s=0.001), make_store(shared_valkey.url, lease_s=100)
    sid = new_id()
    await brief.create(sid, turn, PROMPT)
    assert await long.heartbeat(sid, 1)
    assert (await brief.read(sid)).lease_ms > 90_000
    await brief.commit(sid, 1, entry(3, 4))
    assert (await brief.read(sid)).lease_ms <= 1
    await long.commit(sid, 1, entry(4, 5))
    assert (await brief.read(sid)).lease_ms > 90_000


async def test_a_living_lease_is_not_taken_over(store, make_store, shared_valkey, turn):
    other = make_store(shared_valkey.url)
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    claimed = await other.take_over(sid)
    assert claimed.claim is Claim.HELD
    assert 0 < claimed.remaining_ms <= 5000


@pytest.mark.parametrize("detached", [True, False])
async def test_a_released_session_is_taken_over_at_once(store, make_store, shared_valkey, turn, detached):
    other = make_store(shared_valkey.url)
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.release(sid, 1, detached=detached)
    expected = SessionStatus.DETACHED if detached else SessionStatus.RUNNING
    assert (await store.read(sid)).status is expected
    claimed = await other.take_over(sid)
    assert (claimed.claim, claimed.epoch) == (Claim.TAKEN, 2)
    session = await store.read(sid)
    assert (session.owner, session.status) == (other.owner, SessionStatus.RUNNING)
    assert (await store.commit(sid, 1, entry(3, 4))).outcome is Outcome.FENCED
    assert not await store.heartbeat(sid, 1)
    await store.release(sid, 1, detached=True)
    assert (await store.read(sid)).is_owned


async def test_a_lapsed_lease_is_taken_over(make_store, shared_valkey, turn):
    lapsing, other = make_store(shared_valkey.url, lease_s=0.0), make_store(shared_valkey.url)
    sid = new_id()
    await lapsing.create(sid, turn, PROMPT)
    assert (await other.take_over(sid)).epoch == 2


async def test_of_two_racing_takeovers_one_wins(store, make_store, shared_valkey, turn):
    gateways = [make_store(shared_valkey.url) for _ in range(8)]
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.release(sid, 1, detached=True)
    claims = await asyncio.gather(*(gateway.take_over(sid) for gateway in gateways))
    assert sorted(claim.claim.value for claim in claims) == ["HELD"] * 7 + ["TAKEN"]


async def test_an_owners_failover_claims_the_next_epoch_until_it_is_fenced(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    assert (await store.take_over(sid, held_epoch=1)).epoch == 2
    assert (await store.take_over(sid, held_epoch=1)).claim is Claim.FENCED
    assert (await store.take_over(sid, held_epoch=2)).epoch == 3


async def test_a_claim_whose_reply_was_lost_is_not_made_twice(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    keys = [f"forerun:{{{sid}}}:{part}" for part in ("meta", "tokens", "events")]
    for _ in range(2):
        assert await store._run("take_over", keys, "nonce", store.owner, 5000, 9000, 1) == [b"TAKEN", 2]
    for _ in range(2):
        assert await store._run("create", keys[:2], "nonce", "me", 5000, 9000, 0, b"") == [b"CREATED", 1]


async def test_a_turn_continues_a_finished_session(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.place(sid, 1, verifier="a:1", numerics="n", exact=Exactness.NUMERIC)
    await store.commit(sid, 1, entry(3, 4, finish=FinishReason.STOP, cut=1))
    second = replace(turn, prompt_length=6, request_id="second", seed=None)
    outcome = await store.begin_turn(await store.read(sid), second, (*PROMPT, 4, 20, 21))
    assert outcome == (Begun.BEGUN, 2)
    session = await store.read(sid, with_entries=True)
    assert (session.turn, session.token_ids) == (second, (*PROMPT, 4, 20, 21))
    assert (session.status, session.number) == (SessionStatus.RUNNING, 2)
    assert (session.finish_reason, session.cut, session.exact) == (FinishReason.NONE, None, None)
    assert session.verifier == "a:1"
    assert session.entries == ()
    await store.commit(sid, 2, entry(6, 30))
    assert (await store.read(sid, with_entries=True)).entries == (entry(6, 30),)


async def test_who_reads_an_earlier_turn_is_told(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, 5))
    first = await store.read(sid)
    await store.release(sid, 1, detached=True)
    await store.begin_turn(first, replace(turn, prompt_length=2, request_id=""), (50, 51))
    assert await store.tail(first, 3) == []
    await store.commit(sid, 2, entry(2, 9, 9, 9))
    with pytest.raises(FailedPrecondition):
        await store.tail(first, 4)


async def test_a_turn_that_rewrites_the_conversation_replaces_it(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, 5, 6, finish=FinishReason.STOP))
    second = replace(turn, prompt_length=2, request_id="")
    assert (await store.begin_turn(await store.read(sid), second, (50, 51)))[0] is Begun.BEGUN
    assert await store.commit(sid, 2, entry(2, 9)) == Committed(Outcome.OK, 3)
    session = await store.read(sid, with_entries=True)
    assert (session.token_ids, session.entries) == ((50, 51, 9), (entry(2, 9),))


async def test_a_busy_conversation_takes_no_turn(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    second = replace(turn, prompt_length=4, request_id="second")
    assert (await store.begin_turn(await store.read(sid), second, (*PROMPT, 1)))[0] is Begun.BUSY


async def test_of_two_racing_turns_one_wins(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, finish=FinishReason.STOP))
    session = await store.read(sid)
    turns = [replace(turn, prompt_length=5, request_id=name) for name in ("a", "b")]
    outcomes = await asyncio.gather(*(store.begin_turn(session, t, (*PROMPT, 4, 1)) for t in turns))
    assert {outcome for outcome, _ in outcomes} == {Begun.BEGUN, Begun.BUSY}


async def test_a_repeated_turn_joins_its_first(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, finish=FinishReason.STOP))
    session = await store.read(sid)
    second = replace(turn, prompt_length=5, request_id="again")
    assert await store.begin_turn(session, second, (*PROMPT, 4, 1)) == (Begun.BEGUN, 2)
    assert await store.begin_turn(session, second, (*PROMPT, 4, 1)) == (Begun.JOINED, 2)
    assert (await store.read(sid)).token_ids == (*PROMPT, 4, 1)


async def test_tail_waits_for_the_next_commit(store, make_store, shared_valkey, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    waiting = asyncio.create_task(make_store(shared_valkey.url).tail(await store.read(sid), 3, block_ms=2000))
    await store.commit(sid, 1, entry(3, 4, 5))
    assert await waiting == [entry(3, 4, 5)]


async def test_tail_from_within_an_entry_returns_it_whole(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4, 5))
    await store.commit(sid, 1, entry(5, 6))
    assert await store.tail(await store.read(sid), 4) == [entry(3, 4, 5), entry(5, 6)]
    assert await store.tail(await store.read(sid), 6) == []


async def test_deleted_session_is_gone_and_its_owner_fenced(store, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT)
    await store.commit(sid, 1, entry(3, 4))
    await store.delete(sid)
    for action in (store.read(sid), store.delete(sid), store.take_over(sid)):
        with pytest.raises(NotFound):
            await action
    assert (await store.commit(sid, 1, entry(4, 5))).outcome is Outcome.FENCED


async def test_timings_come_from_the_servers_clock_alone(store, make_store, shared_valkey, turn):
    sid = new_id()
    await store.create(sid, turn, PROMPT, elapsed_us=2_000_000)
    await store.commit(sid, 1, entry(3, 4))
    await make_store(shared_valkey.url).commit(sid, 1, entry(4, 5, finish=FinishReason.STOP), commit_us=1500)
    session = await store.read(sid)
    assert 2000 <= session.first_token_ms <= session.total_ms
    assert session.commit_ms == 1.5


async def test_a_server_that_is_down_is_unavailable(valkey, make_store, turn):
    store = make_store(valkey.url)
    await store.create("s", turn, PROMPT)
    session = await store.read("s")
    valkey.kill()
    for action in (store.ping(), store.create("t", turn, PROMPT), store.tail(session, 0), store.read("s")):
        with pytest.raises(Unavailable) as caught:
            await action
        assert caught.value.reason == "STORE_UNAVAILABLE"


@pytest.mark.processes
async def test_nothing_that_was_committed_is_lost_to_sigkill(valkey, make_store, turn):
    store = make_store(valkey.url)
    await store.create("s", turn, PROMPT)
    committed = [entry(3, 4)]
    await store.commit("s", 1, committed[0])
    for token in range(5, 25):
        if token % 5 == 0:
            valkey.kill()
            valkey.start()
        item = entry(committed[-1].end, token, token)
        assert (await store.commit("s", 1, item)).outcome is Outcome.OK
        committed.append(item)
    valkey.kill()
    valkey.start()
    session = await store.read("s", with_entries=True)
    assert session.entries == tuple(committed)
    assert session.answer_ids == tuple(token for item in committed for token in item.token_ids)


@pytest.mark.processes
async def test_a_cluster_url_works(make_valkey, make_store, turn):
    server = make_valkey("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    server.start()
    node, _ = connect(server.url)
    await node.execute_command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
    while b"cluster_state:ok" not in await node.execute_command("CLUSTER", "INFO"):  # until it has noticed
        pass
    await node.aclose()
    store = make_store(f"redis+cluster://127.0.0.1:{server.port}")
    assert await store.claim_request("r", "s") == "s"
    assert await store.create("s", turn, PROMPT)
    assert (await store.commit("s", 1, entry(3, 4))).outcome is Outcome.OK
    assert await store.tail(await store.read("s"), 3) == [entry(3, 4)]
    assert (await store.take_over("s", held_epoch=1)).epoch == 2
    await store.delete("s")


@pytest.mark.processes
async def test_a_sentinel_url_works(valkey, make_valkey, make_store, turn, tmp_path):
    sentinel = make_valkey(str(tmp_path / "sentinel.conf"), "--sentinel")
    (tmp_path / "sentinel.conf").write_text(
        f"port {sentinel.port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {valkey.port} 1\n"
    )
    sentinel.start()
    store = make_store(f"redis+sentinel://127.0.0.1:{sentinel.port}/main")
    assert await store.create("s", turn, PROMPT)
    assert (await store.read("s")).token_ids == PROMPT


@pytest.mark.parametrize(
    "url",
    [
        "rediss://user:pw@host:6380/2?ssl_cert_reqs=required",
        "redis+cluster://user:pw@a:1,b",
        "rediss+cluster://a:1",
        "rediss+sentinel://user:pw@a:1,b:2/main/3",
        "unix:///run/redis.sock",
    ],
)
async def test_tls_cluster_and_sentinel_urls_are_read_without_dialling(url):
    _, connections = connect(url)
    for connection in connections:
        await connection.aclose()


@pytest.mark.parametrize(
    "url", ["", "http://x", "redis+ring://x", "127.0.0.1:6379", "redis+sentinel://x:1", "redis+cluster://:p@"]
)
def test_what_is_no_redis_url_is_refused(url):
    with pytest.raises(InvalidRequest):
        connect(url)


def test_a_refused_url_shows_no_password():
    with pytest.raises(InvalidRequest) as caught:
        connect("http://user:secret@host:1")
    assert "secret" not in caught.value.message
