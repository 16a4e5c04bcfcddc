"""host:port, as flags and messages write it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from forerun.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Address:
    """A host (name, IPv4, or IPv6 without brackets) and a TCP port; port 0 binds any free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str, field: str = "address") -> Address:
        """Read "host:port" or "[v6]:port". Raises InvalidRequest for anything else."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        bare = host[1:-1] if bracketed else host
        number = int(port) if port.isascii() and port.isdigit() else -1
        if not colon or not bare or (":" in bare) != bracketed or not 0 <= number <= 65535:
            raise InvalidRequest(f"{text!r} is not host:port", reason="BAD_ADDRESS", field=field)
        return cls(bare, number)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return is_loopback_host(self.host)

    @property
    def is_wildcard(self) -> bool:
        try:
            return ip_address(self.host).is_unspecified
        except ValueError:
            return False


def is_loopback_host(host: str) -> bool:
    """Whether nothing outside this machine can be meant; of names only "localhost"."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def advertised(listen: str, port: int, advertise: str | None) -> str:
    """Where others reach a server that listens on `listen` and got `port`.

    What it was told, else its own address. Raises InvalidRequest for a wildcard address that was told
    nothing: no peer could dial it.
    """
    if advertise:
        told = Address.parse(advertise, "advertise")
        return str(Address(told.host, told.port or port))
    bound = Address.parse(listen, "listen")
    if bound.is_wildcard:
        raise InvalidRequest(
            f"{listen} is every address of this machine: say with --advertise which one others dial",
            reason="ADVERTISE_MISSING",
            field="advertise",
        )
    return str(Address(bound.host, port))
