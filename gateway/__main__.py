"""`forerun gateway`: the clients' door, gRPC and HTTP, over verifiers, drafters and Redis."""

from __future__ import annotations

import json

from forerun.wire.command import command, execute
from gateway.settings import Settings


async def _serve(settings: Settings) -> int:
    from gateway.serve import serve  # noqa: PLC0415  loaded only by the process that serves

    return await serve(settings, announce)


run = command(
    Settings, _serve, "Serve clients: sessions in Redis, tokens from verifiers, speed from drafters."
)


def announce(http: str, grpc: str) -> None:
    """Say on stdout that both doors are open; the one line a launcher waits for."""
    print(json.dumps({"ready": True, "service": "gateway", "http": http, "grpc": grpc}), flush=True)  # noqa: T201


def main() -> None:
    """Entry point of `python -m gateway`."""
    execute(run)


if __name__ == "__main__":
    main()
