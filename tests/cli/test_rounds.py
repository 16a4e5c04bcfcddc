"""The worked rounds, as `forerun replay` shows them."""

from dataclasses import replace

import pytest

from forerun.cli.rounds import LEGEND, counted, line, rounds
from forerun.core.types import Origin, PassRecord, Settled

WORDS = ["bell", "will", "soon", "ring", "again", ",", "waking", "the", "city", "clock"]
ID = {word: number for number, word in enumerate(WORDS)}


def ids(text: str) -> tuple[int, ...]:
    return tuple(ID[word] for word in text.split())


def told(*passes: Settled):
    return list(rounds(passes, WORDS.__getitem__))


D, C, B, P = Origin.DRAFTED, Origin.CORRECTION, Origin.BONUS, Origin.PLAIN

PARTLY = Settled(
    10,
    ids("bell will ring"),
    (D, D, C),
    record=PassRecord(
        ids("bell will soon ring"), ids("bell will ring"), num_tested=3, num_accepted=2, num_torn=2
    ),
)
ALL = Settled(
    13,
    ids("again , waking the city"),
    (D, D, D, D, B),
    record=PassRecord(
        ids("again , waking the"), ids("again , waking the city"), num_tested=4, num_accepted=4
    ),
)
NONE = Settled(
    18,
    ids("clock"),
    (C,),
    record=PassRecord(ids("bell will"), ids("clock"), num_tested=1, num_accepted=0, num_torn=2),
)
PLAIN = Settled(19, ids("the"), (P,), record=PassRecord((), ids("the")))


def test_a_draft_that_parts_at_its_third_token_settles_three():
    (one,) = told(PARTLY)
    assert one.settled == ("bell", "will", "ring")
    assert one.accepted == ("bell", "will")
    assert one.corrected == ("soon", "ring")
    assert (one.bonus, one.plain, one.num_torn) == (None, None, 2)


def test_a_draft_that_is_accepted_whole_settles_a_bonus_too():
    (one,) = told(ALL)
    assert len(one.settled) == 5
    assert one.accepted == ("again", ",", "waking", "the")
    assert one.bonus == "city"
    assert one.corrected == ()


def test_a_first_mismatch_settles_exactly_one():
    (one,) = told(NONE)
    assert one.settled == ("clock",)
    assert one.accepted == ()
    assert one.corrected == ("bell", "clock")


def test_passes_run_against_tokens():
    assert [(one.passes, one.tokens) for one in told(PARTLY, ALL, NONE, PLAIN)] == [
        (1, 3),
        (2, 8),
        (3, 9),
        (4, 10),
    ]


def test_an_end_without_a_pass_is_no_round():
    assert told(Settled(10, (), ())) == []


@pytest.mark.parametrize(
    ("settled", "shown"),
    [
        (
            PARTLY,
            (
                "drafted bell will soon ring  target bell will ring  accepted 2  corrected soon → ring  "
                "torn up 2  settled 3"
            ),
        ),
        (
            ALL,
            "drafted again , waking the  target again , waking the city  accepted 4  bonus city  settled 5",
        ),
        (NONE, "drafted bell will  target clock  corrected bell → clock  torn up 2  settled 1"),
        (PLAIN, "plain the"),
        (
            replace(NONE, record=replace(NONE.record, num_torn=7)),
            "drafted bell will  target clock  corrected bell → clock  torn up 7, waiting ones included  settled 1",
        ),
        (
            replace(ALL, record=replace(ALL.record, num_salvaged=2)),
            (
                "drafted again , waking the  target again , waking the city  accepted 4  bonus city  salvaged 2  "
                "settled 5"
            ),
        ),
    ],
)
def test_a_round_is_one_line(settled, shown):
    (one,) = told(settled)
    tokens = "1 token" if one.tokens == 1 else f"{one.tokens} tokens"
    assert line(one).plain == f"   1  {shown}  │ 1 pass, {tokens}"


@pytest.mark.parametrize("settled", [PARTLY, ALL, NONE, PLAIN], ids=["partly", "all", "none", "plain"])
def test_every_word_of_a_line_is_explained(settled):
    (one,) = told(replace(settled, record=replace(settled.record, num_salvaged=1)))
    words = [span for span in line(one).plain.partition("  │")[0].split("  ") if span.strip(" 1")]
    known = (*LEGEND, "settled")
    assert all(word.startswith(known) for word in words)


@pytest.mark.parametrize(("number", "shown"), [(0, "0 passes"), (1, "1 pass"), (2, "2 passes")])
def test_a_number_has_its_plural(number, shown):
    assert counted(number, "pass", "passes") == shown


def test_a_waiting_child_that_was_accepted_is_named_without_a_plan():
    waiting = Settled(10, ids("bell"), (D,), record=PassRecord((), ids("bell"), num_tested=1, num_accepted=1))
    (one,) = told(waiting)
    assert one.accepted == ("bell",)
    assert "drafted a child waited" in line(one).plain


def test_white_space_and_special_tokens_never_break_the_line():
    words = ["\n\n", " the", "", "  "]
    settled = Settled(0, (0, 1, 2, 3), (D, D, D, B), record=PassRecord((0, 1, 2), (0, 1, 2, 3), 3, 3))
    (one,) = rounds([settled], words.__getitem__)
    text = line(one).plain
    assert "\n" not in text
    assert "bonus ␣  " in text
    assert r"drafted \n\n the <special>  target" in text
