"""A service as a command: a flag for each of its settings, a sentence for what cannot be served."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic.fields import FieldInfo

from forerun.errors import ForerunError
from forerun.wire.settings import ServiceSettings, flag_of, read, type_of, variable_of

S = TypeVar("S", bound=ServiceSettings)

_METAVARS: dict[type, str] = {int: "INTEGER", float: "NUMBER", Path: "PATH", str: "TEXT"}
# Of settings that cannot be served, as of a wrong command line.
BAD_SETTINGS = 2


def command(
    settings: type[S], serve: Callable[[S], Coroutine[Any, Any, int]], summary: str
) -> Callable[..., None]:
    """A function for typer that reads `settings`, runs `serve` and exits with the status that it returns.

    What cannot be served is said on stderr, a line each, and exits with 2. `summary` is the command's help.
    """

    def run(**flags: Any) -> None:
        given = {name: value for name, value in flags.items() if value is not None}
        try:
            sys.exit(asyncio.run(serve(read(settings, given))))
        except ForerunError as error:
            # Settings that cannot be served are the caller's to mend: a sentence, not a traceback.
            for line in _about(settings, error, given).splitlines():
                typer.echo(f"forerun: {line}", err=True)
            sys.exit(BAD_SETTINGS)

    own_first = sorted(settings.model_fields, key=ServiceSettings.model_fields.__contains__)
    parameters = [_flag(name, settings.model_fields[name]) for name in own_first]
    run.__doc__ = summary
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def execute(run: Callable[..., None]) -> None:
    """Run a command as the whole program; never returns."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(run)
    app()


def _flag(name: str, field: FieldInfo) -> inspect.Parameter:
    kind = type_of(field)
    default = "" if field.default in {None, ""} else f"; default: {_as_flag(name, field.default)}"
    text = f"{field.description or ''} [env var: {variable_of(name)}{default}]"
    # Only whether it is a switch is the command line's to know: all values are read in one place, whether they
    # come from a flag or a variable, and refused in the same words.
    annotation: Any = (
        Annotated[bool | None, typer.Option(help=text)]
        if kind is bool
        else Annotated[str | None, typer.Option(help=text, metavar=_METAVARS[kind])]
    )
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _as_flag(name: str, default: Any) -> str:
    if isinstance(default, bool):
        return flag_of(name if default else f"no_{name}").removeprefix("--")
    return str(default)


def _about(settings: type[ServiceSettings], error: ForerunError, given: Collection[str]) -> str:
    """The message, after the flag or the variable that it is about where it does not name it."""
    name = error.field.replace("-", "_")
    if name not in settings.model_fields or flag_of(name) in error.message:
        return error.message
    variable = variable_of(name)
    said = variable if name not in given and variable in os.environ else flag_of(name)
    return f"{said}: {error.message}"
