"""Flags that several subcommands take, as typer annotations."""

from __future__ import annotations

import math
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

ApiKey = Annotated[str, typer.Option(envvar="FORERUN_API_KEY", help="Key the gateway asks for.")]
TlsCert = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_CERT", help="Our certificate (PEM).")]
TlsKey = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_KEY", help="Its private key (PEM).")]
TlsCa = Annotated[Path | None, typer.Option(envvar="FORERUN_TLS_CA", help="CA of the gateway (PEM).")]
Target = Annotated[str, typer.Option("--model", help="Target: smollm2, a folder, a .gguf file or a hub id.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float32.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def number(least: float, most: float, text: str) -> Any:
    """Return the option of a number within these bounds, both included; `text` is its help."""

    def parsed(value: str | float) -> float:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if math.isnan(found):
            raise typer.BadParameter(f"must be a number, not {value!r}")
        if not least <= found <= most:
            raise typer.BadParameter(f"must be between {least:g} and {most:g}, not {value}")
        return found

    return typer.Option(parser=parsed, metavar="NUMBER", help=f"{text} [{least:g} to {most:g}]")


E = TypeVar("E", bound=StrEnum)


def one_of(kind: type[E], text: str) -> Any:
    """Return the option of one of an enum's values; `text` is its help."""

    def parsed(value: str) -> E:
        try:
            return kind(value)
        except ValueError:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(kind)}") from None

    return typer.Option(parser=parsed, metavar=f"[{'|'.join(kind)}]", help=text)


def flag_of(name: str) -> str:
    """Return the flag of a parameter."""
    return "--" + name.replace("_", "-")


def said_by(context: typer.Context, name: str) -> str:
    """Return what gave a parameter its value: its variable (FORERUN_NAME) where that did, else its flag."""
    source = context.get_parameter_source(name)
    return f"FORERUN_{name.upper()}" if source and source.name == "ENVIRONMENT" else flag_of(name)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether a parameter is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
