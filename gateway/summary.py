"""The numbers of a finished answer, from what the store holds of it: the same on every gateway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from forerun.core.types import Exactness, Origin, PassRecord, Settled
from gateway.events import Finished, Speculation, Timings, Usage
from gateway.store.entry import Entry
from gateway.store.session import StoredSession


def finished(session: StoredSession, text: str) -> Finished:
    """The last event of a finished session, read with its entries; `text` became visible at the end."""
    records = [piece.record for entry in session.entries for piece in entry.pieces if piece.record]
    return Finished(
        finish_reason=session.finish_reason,
        usage=Usage(prompt_tokens=session.turn.prompt_length, completion_tokens=len(session.answer_ids)),
        speculation=_speculation(session.entries, records),
        timings=Timings(
            first_token_ms=session.first_token_ms,
            total_ms=session.total_ms,
            pass_ms=sum(record.pass_us for record in records) / 1000,
            wait_ms=sum(record.wait_us for record in records) / 1000,
            queue_ms=sum(record.queue_us for record in records) / 1000,
            commit_ms=session.commit_ms,
        ),
        exact=session.exact or Exactness.NUMERIC,
        text=text,
    )


def passes(entries: Iterable[Entry]) -> list[Settled]:
    """What each pass settled, oldest first: pieces that were committed apart are put together again."""
    whole: list[Settled] = []
    open_piece = False
    for piece in (piece for entry in entries for piece in entry.pieces):
        if open_piece:
            first = whole.pop()
            whole.append(
                replace(
                    piece,
                    base=first.base,
                    token_ids=first.token_ids + piece.token_ids,
                    origins=first.origins + piece.origins,
                )
            )
        else:
            whole.append(piece)
        open_piece = piece.record is None
    return whole


def _speculation(entries: Iterable[Entry], records: list[PassRecord]) -> Speculation:
    origins = Counter(origin for entry in entries for origin in entry.origins)
    accepted = Counter(record.num_accepted for record in records if record.num_tested)
    return Speculation(
        passes=len(records),
        # A waiting child is not in the plan; it was tested exactly if more were tested than planned.
        num_drafted=sum(max(len(record.plan_token_ids), record.num_tested) for record in records),
        num_tested=sum(record.num_tested for record in records),
        num_accepted=sum(record.num_accepted for record in records),
        num_salvaged=sum(record.num_salvaged for record in records),
        num_corrections=origins[Origin.CORRECTION],
        num_bonus=origins[Origin.BONUS],
        acceptance_histogram=tuple(accepted[i] for i in range(max(accepted, default=-1) + 1)),
    )
