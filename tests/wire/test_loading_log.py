"""A service that loads says so often enough to be believed, and no more often."""

from __future__ import annotations

from structlog.testing import capture_logs

from forerun.wire.loading_log import LoadingLog


def test_a_step_is_logged_as_it_begins_and_at_every_tenth():
    loading = LoadingLog()
    with capture_logs() as logs:
        loading("weights", 0.0)
        for done in range(100):
            loading("weights", (done + 1) / 100)
        loading("probing", 0.0)
        loading("probing", 1.0)
    assert [(log["what"], log["percent"]) for log in logs] == [
        *(("weights", percent) for percent in range(0, 101, 10)),
        ("probing", 0),
        ("probing", 100),
    ]
