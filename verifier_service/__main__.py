"""`forerun verifier`: one target model behind `VerifierService`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from forerun.errors import ForerunError
from verifier_service.settings import Settings

app = typer.Typer(add_completion=False)


@app.command()
def run(
    model: Annotated[str | None, typer.Option(help="smollm2, a folder, a .gguf file or a hub id")] = None,
    name: Annotated[str | None, typer.Option(help="name clients ask for; default: the model's own")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port to listen on")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="host:port at which drafters reach this very verifier")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16 or float32")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads; 0: all cores")] = None,
    kv_pool_mib: Annotated[int | None, typer.Option(help="KV pool in MiB; 0: a share of the memory")] = None,
    max_sessions: Annotated[int | None, typer.Option(help="sessions that run at once")] = None,
    max_queue: Annotated[int | None, typer.Option(help="sessions that may wait; more are refused")] = None,
    window: Annotated[int | None, typer.Option(help="undecided tokens a drafter may have in flight")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="certificate (PEM)")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="private key (PEM)")] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="CA of every peer (PEM)")] = None,
    insecure: Annotated[bool | None, typer.Option(help="listen beyond loopback without TLS")] = None,
    trusted_drafters: Annotated[
        str | None, typer.Option(help="TLS names, comma separated, whose laws are believed")
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Prometheus port; 0: none")] = None,
    health_port: Annotated[
        int | None, typer.Option(help="plain loopback health port beside mutual TLS; 0: none")
    ] = None,
    otlp_endpoint: Annotated[str | None, typer.Option(help="OTLP collector, host:port")] = None,
    grace_s: Annotated[float | None, typer.Option(help="seconds to finish sessions after SIGTERM")] = None,
) -> None:
    """Serve a target model: the last word on every token."""
    given: dict[str, Any] = {key: value for key, value in locals().items() if value is not None}
    from verifier_service.serve import serve  # noqa: PLC0415  torch is loaded only by the process that serves

    try:
        sys.exit(asyncio.run(serve(Settings(**given), announce)))
    except (ForerunError, ValidationError) as error:
        # Settings that cannot be served are the caller's to mend: a sentence, not a traceback.
        typer.echo(str(error), err=True)
        sys.exit(2)


def announce(address: str) -> None:
    """Say on stdout that the service answers; the one line a launcher waits for."""
    print(json.dumps({"ready": True, "service": "verifier", "address": address}), flush=True)  # noqa: T201


def main() -> None:
    """Entry point of `python -m verifier_service`."""
    app()


if __name__ == "__main__":
    main()
