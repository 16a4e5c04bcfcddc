"""`forerun drafter`: one source of guesses behind `DrafterService`."""

from __future__ import annotations

import json

from drafter_service.settings import Settings
from forerun.wire.command import command, execute


async def _serve(settings: Settings) -> int:
    from drafter_service.serve import serve  # noqa: PLC0415  loaded only by the process that serves

    return await serve(settings, announce)


run = command(Settings, _serve, "Serve a source of guesses: it runs ahead, the verifier decides.")


def announce(address: str) -> None:
    """Say on stdout that the service answers; the one line a launcher waits for."""
    print(json.dumps({"ready": True, "service": "drafter", "address": address}), flush=True)  # noqa: T201


def main() -> None:
    """Entry point of `python -m drafter_service`."""
    execute(run)


if __name__ == "__main__":
    main()
