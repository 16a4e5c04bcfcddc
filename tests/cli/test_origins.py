"""Each token's piece of the text has its origin's colour."""

import pytest

from forerun.cli.origins import STYLES, paint
from forerun.core.types import Origin

D, C, B = Origin.DRAFTED, Origin.CORRECTION, Origin.BONUS


def painted(text, pieces, origins):
    one = paint(text, pieces, origins)
    assert one.plain == text
    return [(text[span.start : span.end], span.style) for span in one.spans]


def test_each_piece_has_its_colour():
    assert painted("the bell", ["the", " bell"], [D, C]) == [("the", STYLES[D]), (" bell", STYLES[C])]


def test_a_special_token_takes_no_place():
    assert painted("the", ["the", "<|end|>"], [D, B]) == [("the", STYLES[D])]


def test_a_character_split_among_tokens_belongs_to_the_one_that_completes_it():
    assert painted("aé b", ["a", "\ufffd", "\ufffd", " b"], [D, D, C, B]) == [
        ("a", STYLES[D]),
        ("é b", STYLES[B]),
    ]


@pytest.mark.parametrize("pieces", [[], ["x"]])
def test_no_text_is_lost_when_no_piece_fits(pieces):
    assert paint("held back", pieces, [D] * len(pieces)).plain == "held back"
