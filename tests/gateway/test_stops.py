from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from forerun.core.types import FinishReason
from gateway.stops import StopSearch
from gateway.text import Tokenizer, visible

ALPHABET = ["a", "b", "\n", " ", "é", "😀", "東", "\ufffd"]
texts = st.lists(st.sampled_from([*ALPHABET, "<|end|>"]), max_size=14).map("".join)
stops = st.lists(st.lists(st.sampled_from(ALPHABET), min_size=1, max_size=4).map("".join), max_size=4)


def by_bytes(small: Tokenizer, text: str, size: int) -> list[int]:
    """Tokens that cut bytes where no tokenizer would: singly, in `size` of every three characters."""
    ids: list[int] = []
    for i, character in enumerate(text):
        whole = small.encode(character)
        if i % 3 < size:
            single = {small.piece(t): t for t in range(2, 258)}
            whole = [single[bytes([byte])] for byte in character.encode()]
        ids += whole
    return ids


def first_stop(data: bytes, stop: list[str]) -> int | None:
    """Where the stop string that is complete first begins; brute force."""
    for end in range(len(data) + 1):
        ending = [len(s.encode()) for s in stop if data[:end].endswith(s.encode())]
        if ending:
            return end - max(ending)
    return None


def held(data: bytes, stop: list[str]) -> int:
    """How many last bytes may begin a stop string; brute force."""
    beginnings = {s.encode()[:n] for s in stop for n in range(len(s.encode()))}
    return max((n for n in range(len(data) + 1) if data[len(data) - n :] in beginnings), default=0)


@given(text=texts, stop=stops, size=st.integers(0, 3), broken=st.integers(0, 40))
@example(text="aab", stop=["ab"], size=3, broken=40)
@example(text="ababa", stop=["abab", "b"], size=0, broken=40)
@example(text="aaaa", stop=["aaa"], size=3, broken=40)
@example(text="é😀", stop=["😀"], size=3, broken=3)
@example(text="éa", stop=["a"], size=3, broken=1)
def test_search_agrees_with_brute_force(
    small: Tokenizer, text: str, stop: list[str], size: int, broken: int
) -> None:
    ids = by_bytes(small, text, size)
    del ids[broken : broken + 1]  # a missing byte leaves broken UTF-8 in the middle
    pieces = [small.piece(i) for i in ids]
    data = b"".join(pieces)
    start = first_stop(data, stop)
    border = len(data) - held(data, stop) if start is None else start
    ends = [sum(map(len, pieces[: n + 1])) for n in range(len(pieces))]
    num_safe = next((n for n, end in enumerate(ends) if end > border), len(ids))
    if start is not None and sum(map(len, pieces[:num_safe])) < start:
        num_safe += 1
    search = StopSearch(small, stop)
    search.push(ids)
    assert search.num_safe == num_safe
    assert search.cut == (None if start is None else len(data[:start].decode(errors="replace")))


@given(text=texts, stop=stops, size=st.integers(0, 3), edge=st.integers(0, 40))
def test_chunks_do_not_matter(small: Tokenizer, text: str, stop: list[str], size: int, edge: int) -> None:
    ids = by_bytes(small, text, size)
    whole, parts = StopSearch(small, stop), StopSearch(small, stop)
    whole.push(ids)
    parts.push(ids[:edge])
    before = parts.num_safe
    parts.push(ids[edge:])
    assert (parts.num_safe, parts.cut) == (whole.num_safe, whole.cut)
    assert before <= parts.num_safe


@given(text=texts, stop=stops, size=st.integers(0, 3))
def test_text_committed_at_any_moment_is_a_prefix_of_the_final_text(
    small: Tokenizer, text: str, stop: list[str], size: int
) -> None:
    ids = by_bytes(small, text, size)
    search = StopSearch(small, stop)
    shown = []
    for token_id in ids:
        search.push([token_id])
        committed = ids[: search.num_safe]
        finish = FinishReason.NONE if search.cut is None else FinishReason.STOP
        shown.append(visible(small, committed, finish, search.cut))
    final = shown[-1] if search.cut is not None else visible(small, ids, FinishReason.LENGTH, None)
    assert all(final.startswith(text) for text in shown)
    clean = [s for s in stop if "\ufffd" not in s]
    assert all(s not in final for s in clean)


def test_a_stop_inside_one_token_keeps_the_text_before_it(small: Tokenizer) -> None:
    ids = small.encode(" bell")
    assert len(ids) == 1
    search = StopSearch(small, ["ll"])
    search.push(ids)
    assert (search.num_safe, search.cut) == (1, 3)
    assert visible(small, ids, FinishReason.STOP, 3) == " be"


def test_a_stop_at_the_very_beginning_leaves_nothing(small: Tokenizer) -> None:
    search = StopSearch(small, ["The"])
    search.push(small.encode("The bell"))
    assert (search.num_safe, search.cut) == (0, 0)


def test_without_stop_strings_everything_is_safe_at_once(small: Tokenizer) -> None:
    search = StopSearch(small, ())
    search.push(small.encode("The bell 🦉"))
    assert (search.num_safe, search.cut) == (len(small.encode("The bell 🦉")), None)


def test_text_the_same_token_count_apart_waits_only_for_what_may_be_a_stop(small: Tokenizer) -> None:
    search = StopSearch(small, ["\nUser:"])
    a, newline, u = (small.encode(t)[0] for t in ("a", "\n", "U"))
    seen = []
    for token_id in (a, newline, u, a):
        search.push([token_id])
        seen.append(search.num_safe)
    assert seen == [1, 1, 1, 4]
