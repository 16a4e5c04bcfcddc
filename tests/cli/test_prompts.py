"""Prompt files are read or refused, line by line."""

import pytest

from forerun.cli.bench.flags import OWN_PROMPTS
from forerun.cli.prompts import one_of_each_category, read_prompts
from forerun.errors import InvalidRequest

LINES = """{"id": 1, "category": "a", "turns": ["x", "y"]}

{"id": 2, "category": "b", "turns": ["z"]}
{"turns": ["w"]}
"""


def test_the_first_turn_of_each_line_is_the_prompt(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(LINES)
    assert [(one.prompt_id, one.category, one.text) for one in read_prompts(path)] == [
        ("1", "a", "x"),
        ("2", "b", "z"),
        ("", "", "w"),
    ]
    assert [one.text for one in read_prompts(path, limit=1)] == ["x"]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"turns": []}', '{"turns": [3]}', '{"turns": [""]}'])
def test_a_line_that_is_no_prompt_is_named(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"turns": ["x"]}\n' + line)
    with pytest.raises(InvalidRequest, match="line 2"):
        read_prompts(path)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\xfa"])
def test_a_file_without_prompts_is_refused(tmp_path, content):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest):
        read_prompts(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidRequest, match="No such file"):
        read_prompts(tmp_path / "none")


def test_the_shipped_prompts_have_thirteen_categories():
    assert len(one_of_each_category(read_prompts(OWN_PROMPTS))) == 13
