"""Sessions in Redis: the one place where an answer's tokens are held, and the only door to it.

Every change is one script, so that each is atomic, and safe to send again when its reply was lost. Redis out
of reach is `Unavailable`, always.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from redis import exceptions

from forerun.core.types import Exactness, FinishReason
from forerun.errors import FailedPrecondition, InternalFault, NotFound, Unavailable
from gateway.store import entry as entries
from gateway.store.connection import connect
from gateway.store.entry import Entry
from gateway.store.scripts import Scripts
from gateway.store.session import SessionStatus, StoredSession, Turn, from_reply, pack

DAY_S = 24 * 3600
# One blocking read; below the socket's timeout.
MAX_BLOCK_MS = 2000
_ENTRIES_A_READ = 256
# Error replies of a server that cannot work now and may later.
_NOT_NOW = (
    "LOADING",
    "MISCONF",
    "NOREPLICAS",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "READONLY",
    "OOM",
    "TRYAGAIN",
    "BUSY",
)


class Outcome(Enum):
    """What became of a commit."""

    OK = "OK"  # held, now or already
    FENCED = "FENCED"  # another epoch owns the session, or it is gone
    SHORT = "SHORT"  # tokens before the base are missing: send again from `length`
    CONFLICT = "CONFLICT"  # other tokens, or another end, are held there


@dataclass(frozen=True, slots=True)
class Committed:
    """Outcome of a commit and the length now held (0 when fenced)."""

    outcome: Outcome
    length: int


class Claim(Enum):
    """What became of the wish to own a session."""

    TAKEN = "TAKEN"  # ours under `epoch`
    HELD = "HELD"  # another's lease lives
    FENCED = "FENCED"  # the epoch that asked is over
    FINISHED = "FINISHED"


@dataclass(frozen=True, slots=True)
class Claimed:
    """Outcome of a claim; `epoch` when TAKEN; `remaining_ms` of the other's lease when HELD."""

    claim: Claim
    epoch: int = 0
    remaining_ms: int = 0


class Begun(Enum):
    """What became of a new turn."""

    BEGUN = "BEGUN"
    JOINED = "JOINED"  # this request's turn is the current one
    BUSY = "BUSY"


class Store:
    """Sessions of one Redis deployment, as one gateway (`owner`, unique to the process) sees them."""

    def __init__(self, url: str, *, lease_s: float = 5.0, ttl_s: float = DAY_S, owner: str = "") -> None:
        self.owner = owner or secrets.token_hex(8)
        self.lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        self._ttl_ms = int(ttl_s * 1000)
        self._client, self._connections = connect(url)
        self._commands: set[asyncio.Task[Any]] = set()  # under way
        self._scripts = Scripts(self._client)

    async def ping(self) -> None:
        """Return if Redis answers. Raises Unavailable."""
        async with _reaching_redis():
            await self._client.ping()

    async def close(self) -> None:
        await asyncio.gather(*self._commands, return_exceptions=True)
        for connection in self._connections:
            await connection.aclose()

    async def claim_request(self, request_id: str, session_id: str) -> str:
        """The session of this request id from now on: `session_id`, or the one an earlier request named."""
        key = f"forerun:req:{request_id}"
        async with _reaching_redis():
            await self._client.set(key, session_id, nx=True, px=self._ttl_ms)
            held = await self._client.get(key)
        return held.decode() if held else session_id

    async def create(
        self, session_id: str, turn: Turn, token_ids: tuple[int, ...], *, elapsed_us: int = 0
    ) -> bool:
        """Make the session, running, epoch 1, leased to us; False (and nothing changed) if it exists.

        `elapsed_us`: how long ago the request came.
        """
        reply = await self._run(
            "create",
            _keys(session_id)[:2],
            *(secrets.token_hex(8), self.owner, self._lease_ms, self._ttl_ms, elapsed_us, pack(token_ids)),
            *_flat(turn.to_fields()),
        )
        return bool(reply[0] == b"CREATED")

    async def begin_turn(
        self,
        session: StoredSession,
        turn: Turn,
        token_ids: tuple[int, ...],
        *,
        elapsed_us: int = 0,
    ) -> tuple[Begun, int]:
        """Start a turn whose prompt is `token_ids`, the whole text so far, if `session` is unowned as read.

        Returns the outcome and the epoch. A prompt that continues the stored text is appended to it; any
        other replaces it, with the earlier turns' events. Raises NotFound.
        """
        held = session.token_ids
        appends = len(token_ids) > len(held) and token_ids[: len(held)] == held
        reply = await self._run(
            "begin_turn",
            _keys(session.session_id),
            *(secrets.token_hex(8), self.owner, self._lease_ms, self._ttl_ms, elapsed_us),
            pack(token_ids[len(held) :] if appends else token_ids),
            *(session.epoch, "append" if appends else "replace", turn.request_id),
            *_flat(turn.to_fields()),
        )
        if reply[0] == b"GONE":
            raise _not_found(session.session_id)
        return Begun(reply[0].decode()), reply[1]

    async def commit(self, session_id: str, epoch: int, entry: Entry, *, commit_us: int = 0) -> Committed:
        """Append the entry's tokens at its base; renew the lease. `commit_us`: what the last commit took."""
        reply = await self._run(
            "commit",
            _keys(session_id),
            *(epoch, entry.base, pack(entry.token_ids), entry.finish_reason.value),
            *(-1 if entry.cut is None else entry.cut, self._lease_ms, self._ttl_ms, commit_us),
            *entry.serialized(),
        )
        return Committed(Outcome(reply[0].decode()), reply[1])

    async def heartbeat(self, session_id: str, epoch: int) -> bool:
        """Renew the lease, unless the answer has ended; False if the session is another epoch's, or gone."""
        reply = await self._run("heartbeat", _keys(session_id), epoch, self._lease_ms, self._ttl_ms)
        return bool(reply[0] == b"OK")

    async def take_over(self, session_id: str, *, held_epoch: int = 0) -> Claimed:
        """Claim the next epoch: our own's (`held_epoch`), or of a session that nobody works on.

        Raises NotFound.
        """
        reply = await self._run(
            "take_over",
            _keys(session_id),
            *(secrets.token_hex(8), self.owner, self._lease_ms, self._ttl_ms, held_epoch),
        )
        if reply[0] == b"GONE":
            raise _not_found(session_id)
        claim = Claim(reply[0].decode())
        if claim is Claim.HELD:
            return Claimed(claim, remaining_ms=reply[1])
        return Claimed(claim, epoch=reply[1])

    async def release(self, session_id: str, epoch: int, *, detached: bool) -> None:
        """Give the lease up now, so that any gateway may go on; no effect when the epoch is over."""
        status = SessionStatus.DETACHED if detached else SessionStatus.RUNNING
        await self._run("release", _keys(session_id)[:1], epoch, status.value)

    async def place(
        self, session_id: str, epoch: int, *, verifier: str, numerics: str, exact: Exactness
    ) -> bool:
        """Note where the session decodes and how exact its text is; False if this epoch is over."""
        fields = {"verifier": verifier, "numerics": numerics, "exact": exact.value}
        reply = await self._run("place", _keys(session_id)[:1], epoch, *_flat(fields))
        return bool(reply[0] == b"OK")

    async def read(self, session_id: str, *, with_entries: bool = False) -> StoredSession:
        """The session as it is now, with its current turn's entries if asked for.

        Raises NotFound; FailedPrecondition if the turn changed while its entries were read.
        """
        now_ms, flat, packed = await self._run("read", _keys(session_id)[:2])
        if not flat or packed is None:
            raise _not_found(session_id)
        session = from_reply(session_id, now_ms, flat, packed)
        return session.with_entries(await self._entries(session)) if with_entries else session

    async def delete(self, session_id: str) -> None:
        """Forget the session; its owner is fenced at its next commit. Raises NotFound."""
        async with _reaching_redis():
            if not await self._client.delete(*_keys(session_id)):
                raise _not_found(session_id)

    async def tail(self, session: StoredSession, length: int, *, block_ms: int = 0) -> Sequence[Entry]:
        """Entries of the turn, oldest first, that end beyond `length` tokens or are an end without tokens at it.

        At most 256. With none there yet waits up to `block_ms` (at most MAX_BLOCK_MS; 0: not at all). Raises
        FailedPrecondition when the conversation went on to another turn.
        """
        key = _keys(session.session_id)[2]
        async with _reaching_redis():
            reply = await self._client.xread(
                {key: f"{length}-0"}, count=_ENTRIES_A_READ, block=min(block_ms, MAX_BLOCK_MS) or None
            )
        found = [entries.from_stream(fields) for _, batch in reply or () for _, fields in batch]
        if any(number != session.number for number, _ in found):
            raise turn_over()
        return [entry for _, entry in found]

    async def _entries(self, session: StoredSession) -> tuple[Entry, ...]:
        """The entries behind the session's tokens; a turn that began since then has taken them away."""
        found: list[Entry] = []
        length = session.turn.prompt_length
        while batch := await self.tail(session, length):
            found += batch
            length = batch[-1].end
            if batch[-1].finish_reason is not FinishReason.NONE:
                break
        # What was committed since `session` was read is not part of it.
        return tuple(entry for entry in found if entry.end <= len(session.token_ids))

    async def _run(self, name: str, keys: list[str], *args: str | int | bytes) -> Any:
        # A command under way ends even if its caller is cancelled: cut short in mid-connect, the client library
        # may swallow the cancellation or lose the connection.
        command = asyncio.create_task(self._scripts.run(name, keys, *args))
        self._commands.add(command)
        command.add_done_callback(self._commands.discard)
        async with _reaching_redis():
            return await asyncio.shield(command)


def _keys(session_id: str) -> list[str]:
    return [f"forerun:{{{session_id}}}:{part}" for part in ("meta", "tokens", "events")]


def _flat(fields: dict[str, Any]) -> list[Any]:
    return [part for pair in fields.items() for part in pair]


def turn_over() -> FailedPrecondition:
    """What those hear who still read an earlier turn."""
    return FailedPrecondition("the conversation went on to another turn", reason="TURN_OVER")


def _not_found(session_id: str) -> NotFound:
    return NotFound(f"no session {session_id}", reason="SESSION_NOT_FOUND", field="session_id")


@asynccontextmanager
async def _reaching_redis() -> AsyncIterator[None]:
    try:
        yield
    except (
        exceptions.ConnectionError,
        exceptions.TimeoutError,
        exceptions.RedisClusterException,
        OSError,
    ) as error:
        raise _unreachable() from error
    except exceptions.RedisError as error:
        if isinstance(error, exceptions.ClusterError) or str(error).startswith(_NOT_NOW):
            raise _unreachable() from error
        if isinstance(
            error, (exceptions.ReadOnlyError, exceptions.OutOfMemoryError, exceptions.TryAgainError)
        ):
            raise _unreachable() from error
        raise InternalFault("the session store refused a command", reason="STORE_FAULT") from error


def _unreachable() -> Unavailable:
    return Unavailable("the session store cannot be reached", reason="STORE_UNAVAILABLE", retry_after_s=1.0)
