"""Look-up drafts from the session's own tokens and its drafted tail, or says nothing."""

from __future__ import annotations

from drafter_service.sources.ngram import NgramSource
from drafter_service.sources.source import Ask


def ask(token_ids, num_settled=None, length=4, key="s"):
    settled = len(token_ids) if num_settled is None else num_settled
    return Ask(key, tuple(token_ids), settled, length, proposer=None, branch=0)


async def test_what_followed_last_time_is_drafted_without_laws():
    (drawn,) = await NgramSource().draw([ask([5, 6, 7, 8, 9, 1, 5, 6])])
    assert (drawn.token_ids, drawn.laws, drawn.ends) == ((7, 8, 9, 1), (), False)


async def test_one_equal_token_is_no_match():
    (drawn,) = await NgramSource().draw([ask([5, 6, 7, 8, 5])])
    assert (drawn.token_ids, drawn.ends) == ((), True)


async def test_the_drafted_tail_is_part_of_the_match_and_is_not_kept():
    source = NgramSource()
    text = [5, 6, 7, 8, 9, 1, 5, 6]
    (drawn,) = await source.draw([ask([*text, 7, 8], num_settled=len(text), length=2)])
    assert drawn.token_ids == (9, 1)
    (drawn,) = await source.draw([ask([*text, 2], length=2)])
    assert drawn.token_ids == ()


async def test_never_more_than_asked_for():
    (drawn,) = await NgramSource().draw([ask([1, 2, 3, 4, 5, 6, 1, 2], length=3)])
    assert drawn.token_ids == (3, 4, 5)


async def test_sessions_do_not_see_each_others_text_and_leave_nothing_behind():
    source = NgramSource()
    first, second = await source.draw([ask([1, 2, 3, 1, 2], key="a"), ask([1, 2], key="b")])
    assert first.token_ids
    assert not second.token_ids
    await source.forget("a")
    (drawn,) = await source.draw([ask([1, 2], key="a")])
    assert not drawn.token_ids
