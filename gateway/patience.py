"""How long the gateway waits for others before it gives up or moves on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, all of them."""

    detach_grace_s: float = 10.0  # a generation without a client runs on for this long
    verifier_s: float = 30.0  # without a verifier, or with verifiers that fail without a new token
    unreached_s: float = 3.0  # for a first verifier, while every address refuses or fails to answer
    stall_s: float = 600.0  # a Decode that says nothing: in a queue, in a long prefill, or stuck
    store_s: float = 30.0  # an outage of Redis
    decode_s: float = 3600.0  # one Decode call; a longer answer goes on in another
    drafter_retry_s: float = 1.0  # between two looks for a drafter when there is none
