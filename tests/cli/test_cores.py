"""Processes that share a machine share out its cores."""

import pytest

from forerun.cli.cores import Shares, share_out


@pytest.mark.parametrize(
    ("cores", "verifiers", "sources", "shares"),
    [
        (2, 1, [], Shares(2, 1)),
        (2, 1, ["ngram"], Shares(2, 1)),
        (2, 1, ["ngram", "model:x"], Shares(1, 1)),
        (16, 1, ["model:x"], Shares(12, 4)),
        (16, 1, ["model:x", "model:y"], Shares(12, 2)),
        (8, 2, [], Shares(4, 1)),
        (1, 2, ["model:x"], Shares(1, 1)),
    ],
)
def test_threads_never_exceed_the_cores_unless_there_are_fewer_than_processes(
    cores, verifiers, sources, shares
):
    assert share_out(cores, verifiers=verifiers, sources=sources) == shares
