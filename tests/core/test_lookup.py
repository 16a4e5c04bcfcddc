"""Look-up against a search that compares every place token by token."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.core.lookup import MAX_MATCH, Lookup

texts = st.lists(st.integers(0, 2), max_size=60)


def naive(text: list[int], length: int, min_match: int) -> tuple[int, ...]:
    best, start = min_match - 1, None
    for place in range(1, len(text)):
        matched = 0
        while matched < min(place, MAX_MATCH) and text[place - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched >= max(best, min_match):
            best, start = matched, place
    if start is None:
        return ()
    longer = list(text)
    for i in range(length):
        longer.append(longer[start + i])
    return tuple(longer[len(text) :])


@settings(max_examples=400)
@given(st.lists(texts, max_size=3), texts.map(lambda t: t[:8]), st.integers(0, 9), st.integers(1, 4))
def test_the_longest_and_latest_earlier_match_is_continued(pieces, tail, length, min_match):
    lookup = Lookup()
    for piece in pieces:
        lookup.extend(piece)
    text = [token for piece in pieces for token in piece] + tail
    assert lookup.propose(tail, length, min_match) == naive(text, length, min_match)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=5), st.integers(20, 90))
def test_a_loop_longer_than_the_longest_match_is_continued_as_a_loop(period, repeats):
    text = period * repeats
    assert Lookup(text).propose((), 12) == naive(text, 12, 2) == tuple((period * 12)[:12])


def test_the_tail_is_searched_but_not_kept():
    lookup = Lookup([1, 2, 3, 4])
    assert lookup.propose([1, 2], 2) == (3, 4)
    assert lookup.propose([7, 8, 9, 7, 8], 2) == (9, 7)
    assert lookup.propose([], 2) == ()
    lookup.extend([5])
    assert lookup.propose([3, 4], 1) == (5,)
    assert len(lookup) == 5


def test_a_longer_match_beats_a_later_one():
    assert Lookup([1, 2, 3, 9, 0, 2, 3, 8, 0, 1, 2, 3]).propose((), 1) == (9,)


def test_the_later_of_equal_matches_wins():
    assert Lookup([2, 3, 9, 0, 2, 3, 8, 0, 2, 3]).propose((), 1) == (8,)


def test_nothing_is_proposed_without_a_match_long_enough():
    assert Lookup([1, 2, 3, 2]).propose((), 4) == ()
    assert Lookup([1, 2, 3, 2]).propose((), 4, min_match=1) == (3, 2, 3, 2)
    assert Lookup([]).propose((), 4) == ()
    assert Lookup([5]).propose((), 4, min_match=1) == ()


def test_a_long_text_is_searched_whole():
    rng = np.random.default_rng(0)
    text = rng.integers(0, 49152, size=8000).tolist()
    assert Lookup(text).propose(text[10:14], 5) == tuple(text[14:19])
