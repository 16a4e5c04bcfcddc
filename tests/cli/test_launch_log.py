"""What services log is shown as a person reads it."""

import pytest

from forerun.cli.launch import log_entry, readable


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            '{"event": "ready", "level": "info", "timestamp": "t", "address": "a:1"}',
            "ready level=info address=a:1",
        ),
        ('{"no": "event"}', '{"no": "event"}'),
        ("{broken", "{broken"),
        ("plain words", "plain words"),
    ],
)
def test_a_line_is_readable(line, shown):
    assert readable(line) == shown


def test_an_entry_is_what_was_logged():
    assert log_entry('{"event": "loading", "percent": 40}') == {"event": "loading", "percent": 40}
    assert log_entry("loading") is None
