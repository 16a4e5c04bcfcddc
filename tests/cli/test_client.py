"""An answer goes on at another gateway where one is lost, and what is left of it can be had later."""

import json

import grpc
import pytest

from forerun.cli import client as client_module
from forerun.cli.client import Answer, Client
from forerun.cli.launch import free_port
from forerun.cli.main import main
from forerun.errors import InvalidRequest, Unavailable
from gateway.request import GenerationRequest
from tests.cli.scripted_doors import ScriptedDoor, opened
from tests.cli.test_answers import DELTAS, EVENTS, OPENED

REQUEST = GenerationRequest(prompt="hello")


class Forgetful(ScriptedDoor):
    """Answers, and finds no session."""

    def GetSession(self, request, context):
        context.abort(grpc.StatusCode.UNAVAILABLE, "lost")


@pytest.fixture
def at_once(monkeypatch):
    """What is lost is not waited for."""
    monkeypatch.setattr(client_module, "RESUME_WITHIN_S", 0)


async def followed(addresses: str, asked=REQUEST) -> Answer:
    answer = Answer()
    async with Client(addresses) as client:
        async for _ in client.follow(asked, answer):
            pass
    return answer


async def test_an_answer_goes_on_at_the_next_address():
    lost, other = ScriptedDoor(EVENTS, breaks_after=2), ScriptedDoor(EVENTS)
    with opened(lost, other) as addresses:
        answer = await followed(addresses)
    assert (answer.token_ids, answer.text) == ([4, 5, 6], "abc!")
    assert [one.offset for one in other.asked] == [2]


async def test_what_cannot_be_reached_to_begin_with_is_passed_over_and_nothing_is_begun_twice():
    deaf, other = ScriptedDoor(EVENTS, breaks_after=0), ScriptedDoor(EVENTS)
    with opened(deaf, other) as addresses:
        answer = await followed(f"127.0.0.1:{free_port()}, {addresses}")
    assert answer.text == "abc!"
    (first,), (second,) = deaf.asked, other.asked
    assert first.request_id == second.request_id != ""


async def test_no_address_is_tried_twice_for_an_answer_that_never_began():
    doors = [ScriptedDoor(EVENTS, breaks_after=0) for _ in range(2)]
    with opened(*doors) as addresses, pytest.raises(Unavailable, match="lost"):
        await followed(addresses)
    assert [len(one.asked) for one in doors] == [1, 1]


async def test_a_stored_session_is_read_where_it_can_be():
    lost, other = ScriptedDoor(EVENTS, breaks_after=0), ScriptedDoor(EVENTS)
    with opened(lost, other) as addresses:
        async with Client(addresses) as client:
            assert (await client.session("s-1")).text == "kept"


@pytest.mark.parametrize("addresses", ["", " , "])
def test_a_client_without_an_address_is_refused(addresses):
    with pytest.raises(InvalidRequest, match="names no gateway"):
        Client(addresses)


@pytest.mark.parametrize("address", ["127.0.0.1:83719", "127.0.0.1:", "gate", "127.0.0.1:8081,gate"])
def test_a_client_of_what_is_no_address_is_refused(address):
    with pytest.raises(InvalidRequest, match="is not host:port") as refused:
        Client(address)
    assert refused.value.field == "gateway"


def generated(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["forerun", "generate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_resume_prints_a_sessions_answer_from_its_beginning(monkeypatch, capsys):
    door = ScriptedDoor(EVENTS)
    with opened(door) as address:
        asked = ("--resume", "s-1", "--gateway", address)
        assert generated(monkeypatch, capsys, *asked) == (0, "abc!\n", "")
        status, out, _ = generated(monkeypatch, capsys, *asked, "--json")
    assert (status, json.loads(out)["text"]) == (0, "abc!")
    assert [(one.session_id, one.offset) for one in door.asked] == [("s-1", 0)] * 2


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("is_seen", "shown"), [(True, "ab\n"), (False, "ab")])
def test_an_answer_that_breaks_off_ends_its_line_and_says_how_the_rest_is_had(
    monkeypatch, capsys, is_seen, shown
):
    with opened(ScriptedDoor([OPENED, *DELTAS], breaks_after=2)) as address:
        monkeypatch.setattr("sys.stdout.isatty", lambda: is_seen)
        status, out, err = generated(monkeypatch, capsys, "hello", "--no-color", "--gateway", address)
    assert (status, out) == (1, shown)
    assert err == (
        "forerun: the answer broke off: lost; session s-1 keeps its 2 tokens: "
        f"`forerun generate --gateway {address} --resume s-1` prints them and goes on\n"
    )


@pytest.mark.usefixtures("at_once")
def test_colours_that_cannot_be_looked_up_do_not_break_an_answer_off(monkeypatch, capsys):
    with opened(Forgetful(EVENTS)) as address:
        status, out, _ = generated(monkeypatch, capsys, "hello", "--color", "--gateway", address)
    assert status == 0
    assert out.startswith("ab")
