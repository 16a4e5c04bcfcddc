"""`forerun verifier`: one target model behind `VerifierService`."""

from __future__ import annotations

import json

from forerun.wire.command import command, execute
from verifier_service.settings import Settings


async def _serve(settings: Settings) -> int:
    from verifier_service.serve import serve  # noqa: PLC0415  torch is loaded only by the process that serves

    return await serve(settings, announce)


run = command(Settings, _serve, "Serve a target model: the last word on every token.")


def announce(address: str) -> None:
    """Say on stdout that the service answers; the one line a launcher waits for."""
    print(json.dumps({"ready": True, "service": "verifier", "address": address}), flush=True)  # noqa: T201


def main() -> None:
    """Entry point of `python -m verifier_service`."""
    execute(run)


if __name__ == "__main__":
    main()
