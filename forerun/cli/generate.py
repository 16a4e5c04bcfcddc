"""`forerun generate`: one answer, streamed, from a running gateway or from a stack of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from forerun.cli.client import DEFAULT_ADDRESS, Answer, Client
from forerun.cli.cores import share_out
from forerun.cli.flags import ApiKey, AsJson, TlsCa, TlsCert, TlsKey, flag_of, is_given, one_of
from forerun.cli.foreground import fail, progress_console, run, unanswered
from forerun.cli.origins import OriginPrinter
from forerun.cli.progress import start_local
from forerun.cli.request import check_request, read_prompt
from forerun.cli.rounds import counted
from forerun.cli.stack import Stack
from forerun.cli.summary import summary
from forerun.core.types import Acceptance, Sampling
from forerun.engine.cores import usable_cores
from forerun.errors import ForerunError
from forerun.wire.address import Address
from forerun.wire.tls import Tls
from gateway.request import GenerationRequest

CONNECT_S = 2.0
# What a resumed answer can be asked with; all else was settled when its session began.
WITH_RESUME = {"resume", "as_json", "color", "gateway", "api_key", "tls_cert", "tls_key", "tls_ca"}
SILENT_S = 2.0  # so long without an answer, a person is told what is waited for


class AcceptanceName(StrEnum):
    """The rules by name."""

    AUTO = "auto"
    REJECTION = "rejection"
    COUPLED = "coupled"


def generate(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="What to answer; - reads it from stdin.")] = None,
    *,
    resume: Annotated[
        str | None,
        typer.Option(help="Instead of PROMPT: a session's answer from its beginning, and on to its end."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most new tokens (default: 256).")] = None,
    temperature: Annotated[float, typer.Option(help="0: always the most probable token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Keep the smallest set of at least this probability.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep this many tokens; 0 keeps all.")] = 0,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens of this fraction of the largest probability.")
    ] = 0.0,
    seed: Annotated[
        int | None, typer.Option(help="With a temperature: the same seed, the same text.")
    ] = None,
    acceptance: Annotated[
        AcceptanceName, one_of(AcceptanceName, "Rule by which drafts are accepted.")
    ] = AcceptanceName.AUTO,
    stop: Annotated[list[str] | None, typer.Option(help="End before this string; repeatable.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the prompt as it is, without the chat template.")
    ] = False,
    no_draft: Annotated[bool, typer.Option("--no-draft", help="Decode without any drafter.")] = False,
    as_json: AsJson = False,
    color: Annotated[bool | None, typer.Option(help="Colour the text by each token's origin.")] = None,
    gateway: Annotated[
        str | None,
        typer.Option(
            help=f"Gateway to ask (default: {DEFAULT_ADDRESS} if one runs there); after a comma others of the same "
            "store, which go on where it is lost.",
            envvar="FORERUN_GATEWAY",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Target of the private stack: smollm2, a folder, a .gguf file or a hub id (default: smollm2)."
        ),
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option(help="Drafter of the private stack; repeatable (default: ngram).")
    ] = None,
    api_key: ApiKey = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Answer PROMPT.

    The prompt is a chat message unless --raw. Without --gateway, --api-key and --tls-…, and with nothing that
    listens at the default address, a private stack is started for this one answer and stopped afterwards.
    """
    address, tls = gateway or DEFAULT_ADDRESS, Tls(tls_cert, tls_key, tls_ca)
    show = Show(as_json=as_json, coloured=sys.stdout.isatty() if color is None else color)
    if resume is not None:
        refuse_beside_resume(context)
        run(_ask_running(Client(address, tls=tls, api_key=api_key), resume, show))
        return
    text = read_prompt(prompt)
    request = GenerationRequest(
        prompt=text if raw else None,
        messages=None if raw else (("user", text),),
        sampling=Sampling(temperature, top_k, top_p, min_p),
        seed=seed,
        acceptance=Acceptance[acceptance.name],
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        no_draft=no_draft,
    )
    check_request(request, text)
    if seed is not None and not temperature:
        print("forerun: --seed changes nothing without --temperature", file=sys.stderr)
    if gateway is not None or tls.enabled or api_key or listens(address):
        refuse_private_flags(address, model, source)
        run(_ask_running(Client(address, tls=tls, api_key=api_key), request, show))
    else:
        sources = [] if no_draft else (source or ["ngram"])
        run(_ask_private(model or "smollm2", sources, request, show))


@dataclass(frozen=True, slots=True)
class Show:
    """How the answer is shown: as one JSON object, or as text that streams, coloured or not."""

    as_json: bool
    coloured: bool


async def _ask_running(client: Client, asked: GenerationRequest | str, show: Show) -> None:
    """The answer of a running gateway is shown; one that cannot be used, or refuses, is one message."""
    answer = Answer()

    def tell() -> None:
        if answer.opened is None and sys.stderr.isatty():
            print(f"forerun: waiting for the gateway at {client.address}", file=sys.stderr)

    telling = asyncio.get_running_loop().call_later(SILENT_S, tell)
    async with client:
        try:
            await _stream(client, asked, answer, show)
        except ForerunError as fault:
            if answer.opened:
                raise _broken_off(client, answer.opened.session_id, answer, fault) from fault
            raise unanswered(client.address, fault) from fault
        finally:
            telling.cancel()


def _broken_off(client: Client, session_id: str, answer: Answer, fault: ForerunError) -> typer.Exit:
    """Return the exit to raise; it says how the tokens so far and the rest are had."""
    where = "" if client.addresses == (DEFAULT_ADDRESS,) else f"--gateway {','.join(client.addresses)} "
    return fail(
        f"the answer broke off: {fault.message}; session {session_id} keeps its "
        f"{counted(len(answer.token_ids), 'token')}: `forerun generate {where}--resume {session_id}` prints them "
        "and goes on"
    )


async def _ask_private(model: str, sources: list[str], request: GenerationRequest, show: Show) -> None:
    """The answer of a stack that is started for it is shown, and nothing of the stack runs any more."""
    async with AsyncExitStack() as exits:
        client = await _private(exits, model, sources)
        try:
            await _stream(client, request, Answer(), show)
        except ForerunError as fault:
            raise fail(fault.message) from fault  # status 1, as where a running gateway refuses


async def _private(exits: AsyncExitStack, model: str, sources: list[str]) -> Client:
    shares = share_out(usable_cores(), verifiers=1, sources=sources)
    stack = await exits.enter_async_context(Stack(model=model, shares=shares))
    gateway = await start_local(stack, sources, progress_console())
    return await exits.enter_async_context(Client(gateway.address))


async def _stream(client: Client, asked: GenerationRequest | str, answer: Answer, show: Show) -> None:
    """The answer is complete and shown; `answer` grows with it."""
    if show.as_json:
        async for _ in client.follow(asked, answer):
            pass
        print(json.dumps(summary(answer), ensure_ascii=False))
        return
    printer = OriginPrinter(client, _stdout(coloured=show.coloured), coloured=show.coloured)
    try:
        async for event in client.follow(asked, answer):
            await printer.take(event)
    except ForerunError:
        printer.break_off()
        raise
    printer.end(answer)


def refuse_private_flags(address: str, model: str | None, sources: list[str] | None) -> None:
    """No flag of the private stack was given; else one usage error (exit 2): a running gateway has its own."""
    if model is not None or sources:
        raise typer.BadParameter(
            f"the gateway at {address} is asked, which has its own model and drafters",
            param_hint="--source" if model is None else "--model",
        )


def refuse_beside_resume(context: typer.Context) -> None:
    """Nothing was given that a session has settled long ago; else one usage error (exit 2) names it."""
    for name in sorted(context.params.keys() - WITH_RESUME):
        if is_given(context, name):
            hint = "PROMPT" if name == "prompt" else flag_of(name)
            raise typer.BadParameter("the session has its own: leave it out beside --resume", param_hint=hint)


def listens(address: str) -> bool:
    """Return whether anything takes connections at host:port, or may: only a refusal says that nothing does."""
    where = Address.parse(address)
    try:
        socket.create_connection((where.host, where.port), timeout=CONNECT_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True


def _stdout(*, coloured: bool) -> Console:
    return Console(
        file=sys.stdout, highlight=False, markup=False, soft_wrap=True, force_terminal=coloured or None
    )
