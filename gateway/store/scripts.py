"""The Lua scripts beside this file, each sent once and then called by its digest."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

NAMES = ("create", "begin_turn", "commit", "heartbeat", "take_over", "release", "place", "read")


class Scripts:
    """Runs scripts by name on one client. All keys of a call share one hash tag: a cluster routes by it."""

    def __init__(self, client: Any) -> None:
        self._client = client
        folder = files("gateway.store")
        self._sources = {name: (folder / f"{name}.lua").read_text() for name in NAMES}
        self._digests = {
            name: hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
            for name, source in self._sources.items()
        }

    async def run(self, name: str, keys: list[str], *args: str | int | bytes) -> Any:
        """The script's reply. A server that does not know it (a restarted one) is told and asked again."""
        try:
            return await self._client.evalsha(self._digests[name], len(keys), *keys, *args)
        except NoScriptError:
            return await self._client.eval(self._sources[name], len(keys), *keys, *args)
