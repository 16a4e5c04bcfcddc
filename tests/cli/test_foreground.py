"""What a command says while it runs can be read by a person, and line by line by a program."""

import pytest

from forerun.cli.foreground import progress_console
from forerun.cli.up import _printer

WORDS = " ".join(f"word-{number}" for number in range(60))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """A terminal, if there were one, would have 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def test_a_line_is_not_wrapped_where_there_is_no_terminal(capsys):
    console = progress_console()
    console.print(f"forerun: {WORDS}", style="red", markup=False)
    console.print(f"[bold]ready[/] {WORDS}")
    assert capsys.readouterr().err.splitlines() == [f"forerun: {WORDS}", f"ready {WORDS}"]


def test_what_services_log_is_a_line_each(capsys):
    log = _printer(progress_console())
    log("verifier", WORDS)
    log("drafter-2", '{"event": "x", "fact": "' + WORDS + '"}')
    assert capsys.readouterr().err.splitlines() == [f"  verifier {WORDS}", f" drafter-2 x fact={WORDS}"]
