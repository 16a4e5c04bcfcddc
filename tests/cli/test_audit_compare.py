"""An audit finds the first difference, and keeps its reference."""

import json

import pytest

from forerun.cli.audit.command import passed
from forerun.cli.audit.compare import Counts, Difference, Outcome, first_difference
from forerun.cli.audit.reference import Conditions, Reference, load, save
from forerun.cli.audit.run import Findings
from forerun.cli.prompts import Prompt
from forerun.errors import InvalidRequest

CONDITIONS = Conditions(numerics="n", temperature=0.0, seed=None, max_tokens=8)
PROMPT = Prompt("1", "c", "hello")


def test_equal_answers_do_not_differ():
    assert first_difference("p", [1, 2, 3], (1, 2, 3)) is None


@pytest.mark.parametrize(
    ("plain", "drafted", "found"),
    [
        ([1, 2, 3], [1, 5, 3], Difference("p", 1, 2, 5, (1,))),
        ([1, 2], [1, 2, 3], Difference("p", 2, None, 3, (1, 2))),
        ([1, 2, 3], [1, 2], Difference("p", 2, 3, None, (1, 2))),
        ([], [7], Difference("p", 0, None, 7, ())),
    ],
)
def test_the_first_difference_is_found_with_what_came_before(plain, drafted, found):
    assert first_difference("p", plain, drafted) == found


def outcome(*differences: Difference) -> Outcome:
    return Outcome("ngram", 2, Counts(tested=5), differences)


def test_an_audit_passes_only_if_all_texts_agree():
    wrong = Difference("p", 0, 1, 2, ())
    assert passed(Findings((outcome(), outcome()), {}))
    assert not passed(Findings((outcome(), outcome(wrong)), {}))
    assert outcome(wrong).agreements == 1


def test_counts_add_up():
    assert Counts(1, 2, 3, 4, 5, 6, 7) + Counts(1, 1, 1, 1, 1, 1, 1) == Counts(2, 3, 4, 5, 6, 7, 8)


def test_a_reference_is_kept_by_what_its_answers_depend_on(tmp_path):
    path = tmp_path / "folder" / "reference.json"
    known = load(path, CONDITIONS)
    assert not known.knows(PROMPT)
    known.keep(PROMPT, [9], [1, 2])
    save(path, known)
    other = Conditions("n", 1.0, 7, 8)
    save(path, Reference(other))
    assert load(path, CONDITIONS).answer(PROMPT) == [1, 2]
    assert load(path, CONDITIONS).texts([PROMPT]) == [([9], [1, 2])]
    assert not load(path, other).knows(PROMPT)
    assert not load(path, Conditions("another engine", 0.0, None, 8)).knows(PROMPT)


@pytest.mark.parametrize("content", ["{", json.dumps([1])])
def test_a_file_that_is_no_reference_is_refused(tmp_path, content):
    path = tmp_path / "reference.json"
    path.write_text(content)
    with pytest.raises(InvalidRequest, match="reference"):
        load(path, CONDITIONS)
