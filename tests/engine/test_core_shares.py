"""Processes of one machine get shares of its cores that do not overlap."""

import pytest

from forerun.engine import cores


def test_shares_never_exceed_the_cores_and_are_never_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for usable in range(1, 20):
        monkeypatch.setattr(cores, "usable_cores", lambda usable=usable: usable)
        for processes in range(1, 25):
            share = cores.share_of_cores(processes)
            assert share >= 1
            assert share * processes <= max(usable, processes)


def test_an_argument_wins_over_the_environment_and_that_over_all_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("FORERUN_THREADS", raising=False)
    assert cores.threads_to_use() == cores.usable_cores()
    monkeypatch.setenv("FORERUN_THREADS", "3")
    assert cores.threads_to_use() == 3
    assert cores.threads_to_use(5) == 5
    with pytest.raises(ValueError, match="0 threads"):
        cores.threads_to_use(0)


def test_a_childs_environment_limits_every_runtime() -> None:
    assert cores.environment_for(2) == {
        "FORERUN_THREADS": "2",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }
