"""`forerun generate`: one answer, streamed, from a running gateway or from a stack of its own."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console

from forerun.cli.client import DEFAULT_ADDRESS, Answer, Client
from forerun.cli.cores import share_out
from forerun.cli.flags import ApiKey, AsJson, TlsCa, TlsCert, TlsKey, one_of
from forerun.cli.foreground import fail, progress_console, run, unanswered
from forerun.cli.origins import OriginPrinter
from forerun.cli.progress import start_local
from forerun.cli.stack import Stack
from forerun.core import limits
from forerun.core.types import Acceptance, Sampling
from forerun.engine.cores import usable_cores
from forerun.errors import ForerunError, InvalidRequest
from forerun.wire.address import Address
from forerun.wire.tls import Tls
from gateway.request import GenerationRequest

CONNECT_S = 2.0
SILENT_S = 2.0  # so long without an answer, a person is told what is waited for


class AcceptanceName(StrEnum):
    """The rules by name."""

    AUTO = "auto"
    REJECTION = "rejection"
    COUPLED = "coupled"


def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from stdin.")],
    *,
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
            help=f"Gateway to ask (default: {DEFAULT_ADDRESS} if one runs there).", envvar="FORERUN_GATEWAY"
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
    check_flags(request, text)
    if seed is not None and not temperature:
        print("forerun: --seed changes nothing without --temperature", file=sys.stderr)
    address, tls = gateway or DEFAULT_ADDRESS, Tls(tls_cert, tls_key, tls_ca)
    coloured = sys.stdout.isatty() if color is None else color
    show = Show(as_json=as_json, coloured=coloured)
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


async def _ask_running(client: Client, request: GenerationRequest, show: Show) -> None:
    """The answer of a running gateway is shown; one that cannot be used, or refuses, is one message."""
    answer = Answer()

    def tell() -> None:
        if answer.opened is None and sys.stderr.isatty():
            print(f"forerun: waiting for the gateway at {client.address}", file=sys.stderr)

    telling = asyncio.get_running_loop().call_later(SILENT_S, tell)
    async with client:
        try:
            await _stream(client, request, answer, show)
        except ForerunError as fault:
            if answer.opened:
                kept = f"session {answer.opened.session_id} keeps its {len(answer.token_ids)} tokens"
                raise fail(f"the answer broke off: {fault.message}; {kept}") from fault
            raise unanswered(client.address, fault) from fault
        finally:
            telling.cancel()


async def _ask_private(model: str, sources: list[str], request: GenerationRequest, show: Show) -> None:
    """The answer of a stack that is started for it is shown, and nothing of the stack runs any more."""
    async with AsyncExitStack() as exits:
        client = await _private(exits, model, sources)
        await _stream(client, request, Answer(), show)


async def _private(exits: AsyncExitStack, model: str, sources: list[str]) -> Client:
    shares = share_out(usable_cores(), verifiers=1, sources=sources)
    stack = await exits.enter_async_context(Stack(model=model, shares=shares))
    gateway = await start_local(stack, sources, progress_console())
    return await exits.enter_async_context(Client(gateway.address))


async def _stream(client: Client, request: GenerationRequest, answer: Answer, show: Show) -> None:
    """The answer is complete and shown; `answer` grows with it."""
    if show.as_json:
        async for _ in client.follow(request, answer):
            pass
        print(json.dumps(summary(answer), ensure_ascii=False))
        return
    printer = OriginPrinter(client, _stdout(coloured=show.coloured), coloured=show.coloured)
    async for event in client.follow(request, answer):
        await printer.take(event)
    printer.end(answer)


def read_prompt(argument: str) -> str:
    """Return the prompt, that of stdin for "-"; a usage error (exit 2) if it is not UTF-8."""
    try:
        return sys.stdin.read() if argument == "-" else argument
    except UnicodeDecodeError as fault:
        raise typer.BadParameter("the prompt is not valid UTF-8") from fault


def refuse_private_flags(address: str, model: str | None, sources: list[str] | None) -> None:
    """No flag of the private stack was given; else one usage error (exit 2): a running gateway has its own."""
    if model is not None or sources:
        raise typer.BadParameter(
            f"the gateway at {address} is asked, which has its own model and drafters",
            param_hint="--source" if model is None else "--model",
        )


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


def check_flags(request: GenerationRequest, prompt: str) -> None:
    """The request is one that some server could answer; else one usage error (exit 2) names the flag."""
    try:
        # A byte that is not UTF-8 reaches us from the command line as a lone surrogate.
        "".join((prompt, *request.stop)).encode()
    except UnicodeEncodeError as fault:
        raise typer.BadParameter("the prompt or a --stop is not valid UTF-8") from fault
    try:
        limits.check_sampling(request.sampling)
        limits.check_seed(request.seed)
        limits.check_stop(request.stop)
        # The lengths that no model's context could allow; its own limit is the server's to know.
        limits.check_lengths(
            min(1, len(prompt)), 1 if request.max_tokens is None else request.max_tokens, 1 << 33
        )
    except InvalidRequest as fault:
        raise typer.BadParameter(fault.message) from fault


def summary(answer: Answer) -> dict[str, Any]:
    """Return the object that --json prints."""
    opened, finished = answer.complete()
    speculation, timings = finished.speculation, finished.timings
    settled = finished.usage.completion_tokens
    return {
        "text": answer.text,
        "token_ids": answer.token_ids,
        "finish_reason": finished.finish_reason.name.lower(),
        "session_id": opened.session_id,
        "mode": opened.mode.name.lower(),
        "seed": opened.seed,
        "exact": finished.exact.value,
        "speculation": {
            "passes": speculation.passes,
            "tokens_per_pass": ratio(settled, speculation.passes),
            "acceptance_rate": ratio(speculation.num_accepted, speculation.num_tested),
            "draft_efficiency": ratio(speculation.num_accepted, speculation.num_drafted),
            "num_drafted": speculation.num_drafted,
            "num_accepted": speculation.num_accepted,
        },
        "timings_ms": {
            "first_token": timings.first_token_ms,
            "total": timings.total_ms,
            "pass": timings.pass_ms,
            "wait": timings.wait_ms,
            "queue": timings.queue_ms,
            "commit": timings.commit_ms,
        },
    }


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole; None where there is no whole."""
    return part / whole if whole else None
