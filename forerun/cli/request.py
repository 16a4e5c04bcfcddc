"""What generate's flags ask for, checked before anything starts."""

from __future__ import annotations

import sys

import typer

from forerun.core import limits
from forerun.errors import InvalidRequest
from gateway.request import GenerationRequest

MAX_ON_THE_WIRE = 2**32 - 1


def read_prompt(argument: str | None) -> str:
    """Return the prompt, that of stdin for "-"; a usage error (exit 2) if there is none or it is not UTF-8."""
    if argument is None:
        raise typer.BadParameter(
            "there is nothing to answer: give a prompt, or --resume", param_hint="PROMPT"
        )
    try:
        return sys.stdin.read() if argument == "-" else argument
    except UnicodeDecodeError as fault:
        raise typer.BadParameter("the prompt is not valid UTF-8", param_hint="PROMPT") from fault


def check_request(request: GenerationRequest, prompt: str) -> None:
    """The request is one that some server could answer; else one usage error (exit 2) names the flag."""
    try:
        # A byte that is not UTF-8 reaches us from the command line as a lone surrogate.
        "".join((prompt, *request.stop)).encode()
    except UnicodeEncodeError as fault:
        raise typer.BadParameter("the prompt or a --stop is not valid UTF-8") from fault
    if not prompt:
        raise typer.BadParameter("the prompt is empty", param_hint="PROMPT")
    # How many tokens a context has room for is the server's to know.
    most = request.max_tokens
    if most is not None and not 1 <= most <= MAX_ON_THE_WIRE:
        why = "must be at least 1" if most < 1 else "no model's context is that long"
        raise typer.BadParameter(why, param_hint="--max-tokens")
    try:
        limits.check_sampling(request.sampling)
        limits.check_seed(request.seed)
        limits.check_stop(request.stop)
    except InvalidRequest as fault:
        raise _refused(fault) from fault


def _refused(fault: InvalidRequest) -> typer.BadParameter:
    name = fault.field.rpartition(".")[2]
    message = fault.message.removeprefix(fault.field).removeprefix(name).lstrip()
    return typer.BadParameter(message, param_hint="--" + name.replace("_", "-"))
