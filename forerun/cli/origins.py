"""Text coloured by where each token came from."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from forerun.cli.client import Answer, Client, StoredSession
from forerun.cli.rounds import counted
from forerun.core.types import Origin
from forerun.errors import Unavailable
from gateway.events import Delta, Event, Opened

STYLES = {
    Origin.PLAIN: "default",
    Origin.DRAFTED: "green",
    Origin.CORRECTION: "red",
    Origin.BONUS: "cyan",
}
SPLIT_CHARS = 4  # at most so many characters pass between two pieces that can be found
NAMES = {
    Origin.PLAIN: "plain",
    Origin.DRAFTED: "drafted and accepted",
    Origin.CORRECTION: "correction",
    Origin.BONUS: "bonus",
}


def legend() -> Text:
    """Return one line that explains the colours."""
    return Text(" · ").join(Text(NAMES[origin], style=STYLES[origin]) for origin in STYLES)


def paint(text: str, pieces: Sequence[str], origins: Sequence[Origin]) -> Text:
    """Return the text, each token's piece of it in its origin's colour.

    Pieces need not add up to the text: special tokens have no place in it, and a character may be split
    among tokens.
    """
    painted, at = Text(), 0
    for piece, origin in zip(pieces, origins, strict=True):
        found = text.find(piece, at, at + len(piece) + SPLIT_CHARS)
        if piece and found >= 0:
            painted.append(text[at : found + len(piece)], style=STYLES[origin])
            at = found + len(piece)
    return painted.append(text[at:], style=STYLES[origins[-1]] if origins else "")


def coloured(session: StoredSession) -> Text:
    """Return a stored session's answer (read with its passes), each token in its origin's colour."""
    origins = [origin for settled in session.passes for origin in settled.origins]
    return paint(session.text, session.token_texts, origins)


class OriginPrinter:
    """Prints an answer as it comes."""

    def __init__(self, client: Client, console: Console, *, coloured: bool) -> None:
        self._client = client
        self._console = console
        self._coloured = coloured
        self._session_id = ""
        self._printed = False

    async def take(self, event: Event) -> None:
        """What the event made visible is printed."""
        if isinstance(event, Opened):
            self._session_id = event.session_id
        elif isinstance(event, Delta):
            self._print(await self._styled(event))
        else:
            self._print(Text(event.text))

    def end(self, answer: Answer) -> None:
        """The line is ended; with colours, the legend and the numbers follow."""
        self._console.print()
        if self._coloured:
            _, finished = answer.complete()
            passes, tokens = finished.speculation.passes, finished.usage.completion_tokens
            self._console.print(legend())
            self._console.print(
                f"{counted(tokens, 'token')} in {counted(passes, 'pass', 'passes')}, session {self._session_id}",
                style="dim",
            )

    def break_off(self) -> None:
        """What was printed of an answer that came no further ends with its line, where a person reads it."""
        if self._printed and self._console.file.isatty():
            self._console.print()

    async def _styled(self, delta: Delta) -> Text:
        kinds = set(delta.origins)
        if not self._coloured:
            return Text(delta.text)
        if len(kinds) == 1:
            return Text(delta.text, style=STYLES[kinds.pop()])
        # Where in the text one token ends and the next begins, only the gateway's tokenizer knows.
        try:
            session = await self._client.session(self._session_id, passes=True)
        except Unavailable:  # no reason to break the answer off
            return Text(delta.text)
        return paint(delta.text, session.token_texts[delta.offset :][: len(delta.origins)], delta.origins)

    def _print(self, text: Text) -> None:
        if text.plain:
            self._console.print(text, end="")
            self._console.file.flush()
            self._printed = True
