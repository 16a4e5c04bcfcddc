"""Addresses to listen on: whether they can be had, and the sentence for those that cannot."""

from __future__ import annotations

import errno
import socket

from forerun.errors import FailedPrecondition
from forerun.wire.address import Address


def check_free(address: Address, flag: str) -> None:
    """Return if `address` can be listened on now.

    Raises FailedPrecondition (CANNOT_BIND) with the reason and the flag that chooses another. Asked before gRPC is,
    which keeps the reason to itself.
    """
    try:
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise cannot_listen(address, flag, error) from error
    faults = [fault for family, _, _, _, target in found if (fault := _fault(family, target)) is not None]
    if len(faults) == len(found):
        raise cannot_listen(address, flag, faults[0]) from faults[0]


def cannot_listen(address: Address, flag: str, why: OSError) -> FailedPrecondition:
    """The error for an address that `why` keeps from being listened on; `flag` is where it was given."""
    taken = "stop what listens there, or " if why.errno == errno.EADDRINUSE else ""
    return FailedPrecondition(
        f"cannot listen on {address}: {why.strerror or why}; {taken}choose another with --{flag}",
        reason="CANNOT_BIND",
        field=flag,
    )


def _fault(family: int, target: tuple[object, ...]) -> OSError | None:
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # What a connection of the last run left behind is no hindrance, to the servers neither.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(target)
    except OSError as error:
        return error
    return None
