"""`forerun replay SESSION`: a session's passes in slow motion."""

from __future__ import annotations

import json
import sys
import time
from typing import Annotated

import typer
from rich.console import Console

from forerun.cli.client import DEFAULT_ADDRESS, Client, StoredSession
from forerun.cli.flags import ApiKey, AsJson, TlsCa, TlsCert, TlsKey
from forerun.cli.foreground import run, unanswered
from forerun.cli.rounds import LEGEND, Round, TextOf, counted, line, rounds
from forerun.errors import ForerunError
from forerun.wire.tls import Tls

SLOWNESS = 20.0  # a pass of 25 ms takes half a second
LONGEST_S = 1.0


def replay(
    session: Annotated[str, typer.Argument(help="Session id, as generate and the gateway report it.")],
    *,
    gateway: Annotated[
        str, typer.Option(envvar="FORERUN_GATEWAY", help="A gateway that reaches the session's store.")
    ] = DEFAULT_ADDRESS,
    fast: Annotated[bool, typer.Option("--fast", help="Print all at once.")] = False,
    as_json: AsJson = False,
    api_key: ApiKey = "",
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
) -> None:
    """Show SESSION pass by pass: what was drafted, what the target said, what became of it.

    Sessions of a private stack (generate with no gateway running) end with it. The first lines explain the words.
    """

    async def body() -> StoredSession:
        async with Client(gateway, tls=Tls(tls_cert, tls_key, tls_ca), api_key=api_key) as client:
            try:
                return await client.session(session, passes=True)
            except ForerunError as fault:
                raise unanswered(gateway, fault) from fault

    stored = run(body())
    told = list(rounds(stored.passes, text_by_id(stored)))
    if as_json:
        for one in told:
            print(json.dumps(one.as_dict(), ensure_ascii=False))
        return
    _play(
        stored,
        told,
        Console(file=sys.stdout, highlight=False, soft_wrap=True),
        slowness=0.0 if fast else SLOWNESS,
    )


def text_by_id(session: StoredSession) -> TextOf:
    """Return how a token that this session drafted or settled reads; any other reads as its number."""
    records = [one.record for one in session.passes if one.record]
    settled = [token for one in session.passes for token in one.token_ids]
    planned = [token for record in records for token in record.plan_token_ids]
    known = dict(zip(planned, session.plan_texts, strict=True))
    known |= dict(zip(settled, session.token_texts, strict=True))
    return lambda token: known.get(token, f"#{token}")


def _play(session: StoredSession, told: list[Round], console: Console, *, slowness: float) -> None:
    console.print(
        f"session {session.session_id}, {session.mode.name.lower()}, prompt of {session.prompt_length} tokens"
    )
    for word, meaning in LEGEND.items():
        console.print(f"  {word:<10}{meaning}", style="dim", markup=False)
    for one in told:
        time.sleep(min(LONGEST_S, slowness * one.pass_us / 1e6))
        console.print(line(one))
    tokens = sum(len(one.settled) for one in told)
    per_pass = f", {tokens / len(told):.2f} tokens a pass" if told else ""
    console.print(f"{counted(len(told), 'pass', 'passes')}, {counted(tokens, 'token')}{per_pass}")
