"""All replicas of one service, followed as their names resolve and their health changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from forerun.core.types import ModelInfo
from forerun.wire.channel import open_channel
from forerun.wire.tls import Tls
from gateway.replica import Describe, Replica
from gateway.targets import Directory, Endpoint

# Names are resolved again this often: a new pod is found within it.
RESOLVE_EVERY_S = 5.0


class Pool:
    """The watched replicas of one service; follows its directory."""

    def __init__(
        self,
        service: str,
        describe: Describe,
        directory: Directory,
        tls: Tls,
        on_change: Callable[[], None],
    ) -> None:
        """Nothing is dialled before `follow`.

        `on_change`: called whenever `serving` may give something else.
        """
        self._service = service
        self._describe = describe
        self._directory = directory
        self._tls = tls
        self._watches: dict[str, tuple[Replica, asyncio.Task[None]]] = {}
        self._departing: set[asyncio.Task[None]] = set()
        self._on_change = on_change
        self._one_served_and_left = False

    @property
    def replicas(self) -> list[Replica]:
        """All replicas, serving or not."""
        return [replica for replica, _ in self._watches.values()]

    def serving(self) -> list[tuple[Replica, ModelInfo]]:
        """Replicas that may be called now, with what they serve."""
        return [(r, r.model) for r in self.replicas if r.model is not None]

    def troubles(self) -> list[tuple[str, str]]:
        """What cannot be reached now and why: replicas' addresses, and names without any."""
        unresolved = ((str(name), "name not resolved") for name in self._directory.unresolved())
        return [*((r.address, r.trouble) for r in self.replicas if r.trouble), *unresolved]

    def is_unreached(self) -> bool:
        """Whether none has ever served and every one fails to answer: more likely misnamed than on its way."""
        if self._one_served_and_left or any(r.last_model or not r.trouble for r in self.replicas):
            return False
        return bool(self.replicas or self._directory.unresolved())

    async def follow(self) -> None:
        """Keep to the directory until cancelled; then every watch has ended and every channel is closed."""
        try:
            while True:
                await self._directory.refresh()
                self._adopt(self._directory.endpoints())
                self._on_change()
                if not self._directory.is_dynamic:
                    await asyncio.Event().wait()
                await asyncio.sleep(RESOLVE_EVERY_S)
        finally:
            tasks = [*self._departing, *(task for _, task in self._watches.values())]
            self._watches.clear()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _adopt(self, endpoints: Iterable[Endpoint]) -> None:
        wanted = {endpoint.address: endpoint for endpoint in endpoints}
        for address in self._watches.keys() - wanted.keys():
            # A pod that ends leaves the name before its calls are done: they go on.
            replica, task = self._watches.pop(address)
            self._one_served_and_left |= replica.last_model is not None
            replica.leave()
            self._departing.add(task)
            task.add_done_callback(self._departing.discard)
        for address in (a for a in wanted if a not in self._watches):
            replica = self._replica(wanted[address])
            self._watches[address] = (replica, asyncio.create_task(replica.run()))

    def _replica(self, endpoint: Endpoint) -> Replica:
        return Replica(
            endpoint.address,
            self._service,
            self._describe,
            lambda: open_channel(endpoint.address, self._tls, server_name=endpoint.server_name),
            self._on_change,
        )
