"""Local processes are started, watched and stopped, and none outlives its launcher."""

import os
import select
import signal
import socket
import subprocess
import sys

import pytest

from forerun.cli.launch import Child, service_ready
from forerun.errors import FailedPrecondition, InvalidRequest, Unavailable
from forerun.wire.address import Address
from forerun.wire.binding import check_free

READY = """print('{"ready": true, "service": "x", "address": "127.0.0.1:7"}', flush=True)"""
FOREVER = "import signal; signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
GONE_WITHIN_MS = 20_000


def child(*statements: str, log=None) -> Child:
    return Child("x", lambda: [sys.executable, "-c", "\n".join(statements)], log=log)


async def test_a_started_child_says_its_addresses_and_ends_when_asked():
    one = child(READY, FOREVER)
    assert await one.start() == {"service": "x", "address": "127.0.0.1:7"}
    assert one.running
    assert await one.stop(10) == -signal.SIGTERM
    assert not one.running


async def test_a_child_that_ignores_sigterm_is_killed_after_its_grace():
    one = child(DEAF, READY, FOREVER)
    await one.start()
    assert await one.stop(0.05) == -signal.SIGKILL


async def test_a_child_that_dies_before_it_is_ready_is_reported_with_its_last_words():
    one = child("import sys; print('no such model', file=sys.stderr); sys.exit(3)")
    with pytest.raises(
        Unavailable, match=r"x exited with status 3 before it was ready; its last lines:\n    no such model"
    ):
        await one.start()


async def test_what_to_do_is_the_last_line_about_one_that_never_was_ready():
    one = Child("x", lambda: [sys.executable, "-c", "print('junk')"], advice="restore it")
    with pytest.raises(Unavailable, match=r"x exited with status 0 .*\n    junk\nrestore it$"):
        await one.start()


async def test_a_ready_one_that_dies_is_reported_with_four_lines_from_after_it_was_ready():
    said = "print(*'abcdef', sep='\\n\\n', flush=True)"
    one = child("print('banner', flush=True)", READY, said)
    await one.start()
    await one.wait()
    last = "".join(f"\n    {letter}" for letter in "cdef")
    assert one.obituary("") == f"x exited with status 0; its last lines:{last}"


async def test_the_cause_of_death_names_the_signal():
    one = child(READY, FOREVER)
    await one.start()
    one.send(signal.SIGKILL)
    await one.wait()
    assert one.obituary("") == "x was killed by SIGKILL"


async def test_a_child_starts_again_after_it_died():
    one = child(READY, FOREVER)
    await one.start()
    first = one.pid
    await one.stop(0)
    await one.start()
    assert one.running
    assert one.pid != first
    await one.stop(0)


async def test_what_a_child_logs_reaches_the_log_line_by_line():
    said = []
    one = child(
        "import sys; print('loading', file=sys.stderr)",
        READY,
        log=lambda name, line: said.append((name, line)),
    )
    await one.start()
    await one.wait()
    assert said == [("x", "loading")]


def test_no_child_outlives_a_launcher_that_is_killed():
    launcher = (
        "import asyncio, sys\n"
        "from forerun.cli.launch import Child\n"
        "async def main():\n"
        f"    one = Child('x', lambda: [sys.executable, '-c', {(READY + chr(10) + FOREVER)!r}])\n"
        "    await one.start()\n"
        "    print(one.pid, flush=True)\n"
        "    await one.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True) as parent:
        orphan = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    gone = select.poll()
    gone.register(orphan, select.POLLIN)
    assert gone.poll(GONE_WITHIN_MS)
    os.close(orphan)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"ready": true, "http": "a:1", "grpc": "b:2"}', {"http": "a:1", "grpc": "b:2"}),
        ('{"ready": false, "http": "a:1"}', None),
        ("{not json", None),
        ("ready", None),
        ("[1]", None),
    ],
)
def test_only_a_ready_line_is_one(line, said):
    assert service_ready(line) == said


def test_a_busy_port_is_refused_by_the_flag_that_can_change_it():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        address = Address("127.0.0.1", busy.getsockname()[1])
        with pytest.raises(
            FailedPrecondition, match=rf"cannot listen on {address}: Address already in use; .* --http"
        ):
            check_free(address, "http")
    check_free(address, "http")


@pytest.mark.parametrize("address", ["", "8080", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_without_a_port_is_refused(address):
    with pytest.raises(InvalidRequest, match="is not host:port"):
        Address.parse(address, "--grpc")
