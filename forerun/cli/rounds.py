"""What one pass did to a session, in words; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from forerun.core.types import Origin, PassRecord, Settled

TextOf = Callable[[int], str]

# The words of a line, as a person is told them once.
LEGEND = {
    "drafted": "guesses that this pass checked; more may wait behind them or beside them",
    "target": "what the target said at each of them, up to the first that it would not have",
    "accepted": "guesses that the target would have said too",
    "corrected": "guess → what the target said instead",
    "bonus": "the target's next token, after guesses that were all accepted",
    "plain": "the target's token where nothing was guessed",
    "salvaged": "accepted guesses that came late, or waited without having been checked yet",
    "torn up": "guesses that have become worthless, checked or waiting",
}


@dataclass(frozen=True, slots=True)
class Round:
    """One pass of one session; tokens as text. `passes` and `tokens` count up to and with it."""

    passes: int
    tokens: int
    source: str
    drafted: tuple[str, ...]  # what the pass checked
    target: tuple[str, ...]  # what the target said at each tested position, then after it
    accepted: tuple[str, ...]
    corrected: tuple[str, ...]  # () or (drafted, target); the drafted one is "" for a child that waited
    bonus: str | None
    plain: str | None
    settled: tuple[str, ...]
    num_salvaged: int
    num_torn: int  # guesses dropped, those that waited behind the checked ones included
    num_held: int  # guesses kept for the next pass
    pass_us: int

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def rounds(passes: Sequence[Settled], text_of: TextOf) -> Iterator[Round]:
    """Yield what each pass did, oldest first; messages without a pass (an end at once) are left out."""
    number = tokens = 0
    for settled in passes:
        if settled.record is None:
            continue
        number += 1
        tokens += len(settled.token_ids)
        yield _round(number, tokens, settled, settled.record, text_of)


def _round(number: int, tokens: int, settled: Settled, record: PassRecord, text_of: TextOf) -> Round:
    texts = tuple(text_of(token) for token in settled.token_ids)
    by_origin = list(zip(texts, settled.origins, strict=True))
    closing: dict[Origin, str] = {origin: text for text, origin in by_origin if origin != Origin.DRAFTED}
    corrected: tuple[str, ...] = ()
    if Origin.CORRECTION in closing:
        plan, tested = record.plan_token_ids, record.num_accepted
        corrected = (text_of(plan[tested]) if tested < len(plan) else "", closing[Origin.CORRECTION])
    return Round(
        passes=number,
        tokens=tokens,
        source=record.source,
        drafted=tuple(text_of(token) for token in record.plan_token_ids),
        target=tuple(text_of(token) for token in record.target_token_ids),
        accepted=tuple(text for text, origin in by_origin if origin == Origin.DRAFTED),
        corrected=corrected,
        bonus=closing.get(Origin.BONUS),
        plain=closing.get(Origin.PLAIN),
        settled=texts,
        num_salvaged=record.num_salvaged,
        num_torn=record.num_torn,
        num_held=record.num_held,
        pass_us=record.pass_us,
    )


def line(one: Round) -> Text:
    """Return the round as one coloured line."""
    text = Text(f"{one.passes:>4}  ", style="dim")
    if one.drafted or one.accepted or one.corrected:
        text.append_text(_tested(one))
    if one.plain is not None:
        text.append("plain ", style="dim").append(_shown(one.plain), style="bold")
    if one.num_torn:
        text.append("  torn up ", style="dim").append(str(one.num_torn), style="yellow")
        if one.num_torn > len(one.drafted) - len(one.accepted):
            text.append(", waiting ones included", style="dim")
    if one.plain is None:
        text.append(f"  settled {len(one.settled)}", style="bold")
    return text.append(
        f"  │ {counted(one.passes, 'pass', 'passes')}, {counted(one.tokens, 'token')}", style="dim"
    )


def counted(number: int, one: str, many: str = "") -> str:
    """Return the number with its noun, in the plural but for 1."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def _tested(one: Round) -> Text:
    """Return what was drafted, what the target said, and what became of it."""
    text = _drafted(one)
    text.append("  target ", style="dim").append(" ".join(map(_shown, one.target)), style="bold")
    if one.accepted:
        text.append("  accepted ", style="dim").append(str(len(one.accepted)), style="green")
    if one.corrected:
        was, now = one.corrected
        text.append("  corrected ", style="dim").append(
            _shown(was) if was else "a waiting one", style="strike red"
        )
        text.append(" → ", style="dim").append(_shown(now), style="red")
    if one.bonus is not None:
        text.append("  bonus ", style="dim").append(_shown(one.bonus), style="cyan")
    if one.num_salvaged:
        text.append("  salvaged ", style="dim").append(str(one.num_salvaged), style="green")
    return text


def _drafted(one: Round) -> Text:
    text = Text("drafted ", style="dim")
    if not one.drafted:
        return text.append("a child waited", style="dim")
    for index, token in enumerate(one.drafted):
        style = (
            "green"
            if index < len(one.accepted)
            else "strike red"
            if index == len(one.accepted)
            else "strike dim"
        )
        text.append(" " if index else "").append(_shown(token), style=style)
    return text


def _shown(token: str) -> str:
    """Return a token as it may stand within a line: a leading space dropped, white space made visible."""
    if not token:
        return "<special>"
    bare = token.removeprefix(" ") if len(token) > 1 else token
    if bare.isspace() or not bare.isprintable():
        return "".join("␣" if one == " " else one.encode("unicode_escape").decode() for one in bare)
    return bare
