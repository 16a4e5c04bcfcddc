"""Flags that several subcommands take, as typer annotations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ApiKey = Annotated[str, typer.Option(envvar="FORERUN_API_KEY", help="Key the gateway asks for.")]
TlsCert = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_CERT", help="Our certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_KEY", help="Its private key (PEM).")]
TlsCa = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_CA", help="CA of the gateway (PEM).")]
Target = Annotated[str, typer.Option("--model", help="Target: smollm2, a folder, a .gguf file or a hub id.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
