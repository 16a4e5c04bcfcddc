"""`forerun gateway`: the clients' door, gRPC and HTTP, over verifiers, drafters and Redis."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from forerun.errors import ForerunError
from gateway.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def run(
    verifiers: Annotated[str | None, typer.Option(help="host:port,… or dns:///name:port")] = None,
    drafters: Annotated[str | None, typer.Option(help="the same; empty: none")] = None,
    redis_url: Annotated[
        str | None, typer.Option(help="redis://, rediss://, redis+sentinel:// or redis+cluster://")
    ] = None,
    http: Annotated[str | None, typer.Option(help="host:port of the HTTP door")] = None,
    grpc: Annotated[str | None, typer.Option(help="host:port of the gRPC door")] = None,
    api_keys_file: Annotated[
        Path | None, typer.Option(help="one API key a line; none: no key needed")
    ] = None,
    acceptance: Annotated[
        str | None, typer.Option(help="auto, rejection or coupled, for requests that leave it open")
    ] = None,
    lease_s: Annotated[
        float | None, typer.Option(help="seconds until a lost gateway's sessions may be taken over")
    ] = None,
    detach_grace_s: Annotated[
        float | None, typer.Option(help="seconds an answer goes on without a client")
    ] = None,
    session_ttl_s: Annotated[
        float | None, typer.Option(help="seconds a session is kept after its last use")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="certificate (PEM)")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="private key (PEM)")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="CA of every peer (PEM)")] = None,
    insecure: Annotated[bool | None, typer.Option(help="listen beyond loopback without TLS")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus port beside /metrics; 0: none")] = None,
    health_port: Annotated[
        int | None, typer.Option(help="plain health port beside mutual TLS; 0: none")
    ] = None,
    otlp_endpoint: Annotated[str | None, typer.Option(help="OTLP collector, host:port")] = None,
    grace_s: Annotated[float | None, typer.Option(help="seconds to finish answers after SIGTERM")] = None,
) -> None:
    """Serve clients: sessions in Redis, tokens from verifiers, speed from drafters."""
    given: dict[str, Any] = {key: value for key, value in locals().items() if value is not None}
    from gateway.serve import serve  # noqa: PLC0415  loaded only by the process that serves

    try:
        sys.exit(asyncio.run(serve(Settings(**given), announce)))
    except (ForerunError, ValidationError) as error:
        # Settings that cannot be served are the caller's to mend: a sentence, not a traceback.
        typer.echo(str(error), err=True)
        sys.exit(2)


def announce(http: str, grpc: str) -> None:
    """Say on stdout that both doors are open; the one line a launcher waits for."""
    print(json.dumps({"ready": True, "service": "gateway", "http": http, "grpc": grpc}), flush=True)  # noqa: T201


def main() -> None:
    """Entry point of `python -m gateway`."""
    app()


if __name__ == "__main__":
    main()
