"""Which verifiers a drafter may be sent to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from forerun.errors import InvalidRequest, PermissionRefused
from forerun.wire.address import Address

LOOPBACK = "loopback"


@dataclass(frozen=True, slots=True)
class AllowList:
    """Globs of host:port; the word "loopback" stands for every port of this machine's loopback addresses.

    Without it anyone who may call a drafter could make it dial any address.
    """

    patterns: tuple[tuple[str, str], ...]  # (host glob, port glob)
    loopback: bool

    @classmethod
    def parse(cls, texts: Sequence[str]) -> AllowList:
        """Read "host:port" globs, "[v6]:port" and "loopback". Raises InvalidRequest for anything else."""
        patterns = []
        for text in texts:
            host, colon, port = text.rpartition(":")
            if text == LOOPBACK:
                continue
            if not (host and colon and port):
                raise InvalidRequest(
                    f"{text!r} is neither a glob host:port nor {LOOPBACK!r}",
                    reason="BAD_GLOB",
                    field="allow-verifiers",
                )
            patterns.append((host.removeprefix("[").removesuffix("]").lower(), port))
        return cls(tuple(patterns), LOOPBACK in texts)

    def check(self, text: str) -> str:
        """The address in its plain form, if it is allowed.

        Raises InvalidRequest for what is no address, PermissionRefused for one that no glob matches.
        """
        address = Address.parse(text, "verifier_address")
        host = address.host.lower()
        if self.loopback and address.is_loopback:
            return str(address)
        for host_glob, port_glob in self.patterns:
            if fnmatchcase(host, host_glob) and fnmatchcase(str(address.port), port_glob):
                return str(address)
        raise PermissionRefused(
            f"{text} is not on this drafter's list of verifiers (--allow-verifiers)",
            reason="VERIFIER_NOT_ALLOWED",
            field="verifier_address",
        )
