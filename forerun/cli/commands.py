"""The subcommands of `forerun`. Each one's module is imported only when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from forerun.cli.interrupts import silent_interrupts

# Subcommand: module and attribute (a function with typer's annotations, or a Typer of further subcommands).
COMMANDS = {
    "up": ("forerun.cli.up", "up"),
    "generate": ("forerun.cli.generate", "generate"),
    "replay": ("forerun.cli.replay", "replay"),
    "demo": ("forerun.cli.demo", "demo"),
    "audit": ("forerun.cli.audit.command", "audit"),
    "bench": ("forerun.cli.bench.command", "app"),
    "breakeven": ("forerun.cli.breakeven", "breakeven"),
    "model": ("forerun.cli.model", "model"),
    "verifier": ("verifier_service.__main__", "run"),
    "drafter": ("drafter_service.__main__", "run"),
    "gateway": ("gateway.__main__", "run"),
}


class LazyCommands(TyperGroup):
    """The subcommands of COMMANDS; one is imported when it is named, all for the list that --help shows."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, attribute = COMMANDS[cmd_name]
        with silent_interrupts():
            target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            return typer.main.get_command(target)
        single = _typer()
        single.command(name=cmd_name)(target)
        return typer.main.get_command(single)


def _typer(**options: Any) -> typer.Typer:
    return typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, **options)


app = _typer(
    cls=LazyCommands, no_args_is_help=True, help="A small model runs ahead; a large one has the last word."
)


@app.callback()
def _forerun() -> None:
    pass
