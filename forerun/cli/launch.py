"""Local processes: started tethered to this one, watched, and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from forerun.errors import Unavailable

TETHER = Path(__file__).with_name("tether.py")
# Of a child's log, for the message that says how it died: before it was ready the reason is in them.
LAST_LINES, LAST_LINES_OF_READY = 12, 4
LINE_LIMIT_BYTES = 1 << 20

ReadyLine = Callable[[str], "dict[str, str] | None"]
Log = Callable[[str, str], None]  # (name of the process, line)


def service_ready(line: str) -> dict[str, str] | None:
    """Return the addresses in a service's ready line; None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    if not isinstance(said, dict) or said.get("ready") is not True:
        return None
    return {key: value for key, value in said.items() if isinstance(value, str)}


def log_entry(line: str) -> dict[str, Any] | None:
    """Return what a service logged as JSON; None for a line that is no entry."""
    if not line.startswith("{"):
        return None
    try:
        said = json.loads(line)
    except ValueError:
        return None
    return said if isinstance(said, dict) and "event" in said else None


def readable(line: str) -> str:
    """Return a log line as a person reads it."""
    entry = log_entry(line)
    if entry is None:
        return line
    hidden = {"event", "timestamp", "service", "logger"}
    facts = [f"{key}={value}" for key, value in entry.items() if key not in hidden]
    return " ".join([str(entry["event"]), *facts])


def free_port() -> int:
    """Return a port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """One local process. `command` is read again for every start, so that a restart keeps its addresses."""

    def __init__(
        self,
        name: str,
        command: Callable[[], list[str]],
        *,
        ready: ReadyLine = service_ready,
        env: Mapping[str, str] | None = None,
        log: Log | None = None,
        niceness: int = 0,
        advice: str = "",
    ) -> None:
        self.name = name
        self._advice = advice  # the last line of what is said where it dies before it is ready
        self._niceness = niceness
        self.listeners: list[Log] = [log] if log else []
        self.tail: deque[str] = deque(maxlen=LAST_LINES)
        self._command = command
        self._is_ready = ready
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._ready: asyncio.Future[dict[str, str]] | None = None

    @property
    def pid(self) -> int:
        """Process id of the current or last run; 0 before the first."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> dict[str, str]:
        """Start the process; return what its ready line said. Raises Unavailable if it dies first."""
        self.tail = deque(maxlen=LAST_LINES)
        self._ready = asyncio.get_running_loop().create_future()
        # A session of its own: Ctrl-C reaches the launcher alone, which stops its children in order.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", str(TETHER), str(os.getpid()), str(self._niceness), *self._command(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            start_new_session=True,
            limit=LINE_LIMIT_BYTES,
        )  # fmt: skip
        self._readers = [
            asyncio.create_task(self._read(stream, watch=watch))
            for stream, watch in ((self._process.stdout, True), (self._process.stderr, False))
            if stream is not None
        ]
        ended = asyncio.create_task(self.wait())
        try:
            await asyncio.wait((self._ready, ended), return_when=asyncio.FIRST_COMPLETED)
            if self._ready.done():
                return self._ready.result()
            said = self.obituary("before it was ready")
            raise Unavailable(f"{said}\n{self._advice}" if self._advice else said)
        except asyncio.CancelledError:
            await self.stop(0)
            raise
        finally:
            ended.cancel()

    async def _read(self, stream: asyncio.StreamReader, *, watch: bool) -> None:
        async for raw in stream:
            line = raw.decode(errors="replace").rstrip()
            said = self._is_ready(line) if watch and self._ready and not self._ready.done() else None
            if said is not None and self._ready is not None:
                self._ready.set_result(said)
                # What it said while it started is not why it dies later.
                self.tail = deque(maxlen=LAST_LINES_OF_READY)
                continue
            if line:
                self.tail.append(line)
            for listen in self.listeners:
                listen(self.name, line)

    async def wait(self) -> int:
        """Return the exit status once the process has ended and its output is read; negative: a signal."""
        if self._process is None:
            return 0
        status = await self._process.wait()
        await asyncio.wait(self._readers)
        return status

    def obituary(self, when: str) -> str:
        """Return one sentence on how the process ended, and its last lines."""
        status = self._process.returncode if self._process else None
        how = "ended" if status is None else f"exited with status {status}"
        if status is not None and status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        last = "\n".join(f"    {readable(line)}" for line in self.tail)
        return f"{self.name} {how} {when}".rstrip() + (f"; its last lines:\n{last}" if last else "")

    def cpu_seconds(self) -> float:
        """Return the processor time it has used so far; 0 when it does not run or the system does not say."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time

    def send(self, number: signal.Signals) -> None:
        """The process has been sent a signal, if it runs."""
        if self._process is not None and self.running:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self, grace_s: float) -> int:
        """Return its exit status once it has ended: asked with SIGTERM, after `grace_s` killed."""
        self.send(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        try:
            return await asyncio.wait_for(self.wait(), grace_s or None)
        except TimeoutError:
            self.send(signal.SIGKILL)
            return await self.wait()
