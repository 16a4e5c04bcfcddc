"""Where the cache is, who writes to it, and what killed processes leave there."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from forerun.engine.cache_folder import alone_with, arriving_whole, cache_folder
from forerun.errors import InvalidRequest

WRITER = """
import pathlib, sys
from forerun.engine.cache_folder import alone_with, arriving_whole

target = pathlib.Path(sys.argv[1])
with alone_with(target, lambda: print("waits", flush=True)), arriving_whole(target) as arriving:
    arriving.mkdir()
    print("writes", flush=True)
    sys.stdin.read()
"""


def writer(target: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", WRITER, str(target)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home of its own, and nothing that names a cache."""
    monkeypatch.delenv("FORERUN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_the_projects_variable_comes_before_the_users_and_that_before_home(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert cache_folder() == home / ".cache" / "forerun"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert cache_folder() == tmp_path / "shared" / "forerun"
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    assert cache_folder().is_dir()


@pytest.mark.parametrize("said", ["", "shared", "./shared"])
def test_a_shared_cache_that_is_not_absolute_does_not_count(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", said)
    assert cache_folder() == home / ".cache" / "forerun"


def test_a_folder_that_cannot_be_made_is_named_with_the_reason_and_the_variable(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for variable, said, folder, why in (
        ("HOME", "/proc/1", "/proc/1/.cache/forerun", "No such file or directory"),
        ("XDG_CACHE_HOME", "/proc", "/proc/forerun", "No such file or directory"),
        ("FORERUN_CACHE", str(tmp_path / "file"), str(tmp_path / "file"), "it is not a folder"),
        ("FORERUN_CACHE", "/proc/nope", "/proc/nope", "No such file or directory"),
    ):
        monkeypatch.setenv(variable, said)
        with pytest.raises(InvalidRequest) as caught:
            cache_folder()
        assert caught.value.message == (
            f"the cache cannot be kept in {folder}: {why}; name another folder in FORERUN_CACHE"
        )


def test_without_a_home_the_variable_is_asked_for(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    with pytest.raises(InvalidRequest, match="name a folder in FORERUN_CACHE"):
        cache_folder()


def test_a_cache_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / "file" / "target"
    with pytest.raises(InvalidRequest, match=f"cannot be kept in {target.parent}"), arriving_whole(target):
        pass
    with pytest.raises(InvalidRequest, match=f"cannot be kept in {target.parent}"), alone_with(target, int):
        pass


def test_what_a_killed_writer_left_is_gone_for_the_next(tmp_path: Path) -> None:
    target = tmp_path / "model-1"
    with writer(target) as killed:
        assert killed.stdout.readline() == b"writes\n"
        os.kill(killed.pid, signal.SIGKILL)
    other = tmp_path / ".model-12.abcdefgh"
    other.mkdir()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2
    with alone_with(target, int):
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == [other]


def test_what_a_living_writer_writes_stays_and_is_waited_for(tmp_path: Path) -> None:
    target = tmp_path / "model-1"
    with writer(target) as first:
        assert first.stdout.readline() == b"writes\n"
        with writer(target) as second:
            assert second.stdout.readline() == b"waits\n"
            (scratch,) = [path for path in tmp_path.iterdir() if path.is_dir()]
            assert (scratch / target.name).is_dir()
            first.stdin.close()
            assert second.stdout.readline() == b"writes\n"
            assert target.is_dir()
            second.stdin.close()
    assert (first.returncode, second.returncode) == (0, 0)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [target]
