"""Which replicas a flag names: fixed addresses, and DNS names, one replica per address record."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from forerun.errors import InvalidRequest
from forerun.wire.address import Address

DNS_PREFIX = "dns:///"

Resolve = Callable[[Address], Awaitable[list[str]]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica's address.

    `server_name`: the name its certificate must carry when that is not the address.
    """

    address: str
    server_name: str = ""


@dataclass(frozen=True, slots=True)
class Targets:
    """A flag's content: "host:port" and "dns:///name:port" items, separated by commas."""

    fixed: tuple[Endpoint, ...]
    names: tuple[Address, ...]

    @classmethod
    def parse(cls, text: str, field: str) -> Targets:
        """Read the flag. Raises InvalidRequest (BAD_ADDRESS) for an item that is neither form."""
        fixed: list[Endpoint] = []
        names: list[Address] = []
        for item in (part.strip() for part in text.split(",")):
            address = Address.parse(item.removeprefix(DNS_PREFIX), field) if item else None
            if address is None:
                continue
            if not address.port:
                raise InvalidRequest(f"{item!r} has no port to dial", reason="BAD_ADDRESS", field=field)
            if item.startswith(DNS_PREFIX):
                names.append(address)
            else:
                fixed.append(Endpoint(str(address)))
        return cls(tuple(dict.fromkeys(fixed)), tuple(dict.fromkeys(names)))


async def resolve_name(name: Address) -> list[str]:
    """Every address the name stands for, as "ip:port". Raises OSError when it cannot be resolved now."""
    loop = asyncio.get_running_loop()
    records = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    return sorted({str(Address(str(record[4][0]), name.port)) for record in records})


class Directory:
    """The endpoints of some targets as last resolved; a name that fails to resolve keeps what it had."""

    def __init__(self, targets: Targets, resolve: Resolve) -> None:
        self._targets = targets
        self._resolve = resolve
        self._resolved: dict[Address, list[Endpoint]] = {}
        self._failures: dict[Address, str] = {}

    @property
    def is_dynamic(self) -> bool:
        """Whether resolving again can change anything."""
        return bool(self._targets.names)

    async def refresh(self) -> None:
        """Resolve every name once; a failure is logged when it is another than the name's last."""
        for name in self._targets.names:
            try:
                addresses = await self._resolve(name)
            except OSError as error:
                if self._failures.get(name) != str(error):
                    self._failures[name] = str(error)
                    await structlog.get_logger("gateway.router").awarning(
                        "name not resolved", name=str(name), error=str(error)
                    )
            else:
                self._failures.pop(name, None)
                self._resolved[name] = [Endpoint(address, name.host) for address in addresses]

    def unresolved(self) -> list[Address]:
        """Names that failed to resolve and stand for nothing."""
        return [name for name in self._failures if not self._resolved.get(name)]

    def endpoints(self) -> list[Endpoint]:
        """All endpoints known, each address once."""
        listed = [*self._targets.fixed, *(e for found in self._resolved.values() for e in found)]
        return list({endpoint.address: endpoint for endpoint in listed}.values())
