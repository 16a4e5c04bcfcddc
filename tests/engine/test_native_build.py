"""Kernels are compiled once, arrive whole, and their absence is no error."""

import logging
from pathlib import Path

import pytest

from forerun.engine.load import load_engine
from forerun.engine.modules_forward import ModulesForward
from forerun.engine.native import build
from forerun.engine.native.build import KernelsUnavailableError, load_kernels

afresh = load_kernels.__wrapped__


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_what_was_compiled_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> None:
    first = afresh()

    def refuse(*_arguments: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(build, "_compile", refuse)
    assert afresh().build == first.build


def test_without_a_compiler_there_are_no_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(KernelsUnavailableError, match="no C compiler"):
        afresh()


def test_a_compiler_that_fails_is_quoted_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path
) -> None:
    monkeypatch.setenv("CC", str(compiler(tmp_path / "bin", "echo 'sorry, no' >&2; exit 1")))
    with pytest.raises(KernelsUnavailableError, match="sorry, no"):
        afresh()
    assert not list((empty_cache / "kernels").iterdir())


def test_a_library_that_does_not_load_is_no_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_cache: Path
) -> None:
    script = 'while [ "$1" != -o ]; do [ $# = 0 ] && exit; shift; done; echo rubbish > "$2"'
    monkeypatch.setenv("CC", str(compiler(tmp_path / "bin", script)))
    with pytest.raises(KernelsUnavailableError):
        afresh()
    assert empty_cache.is_dir()


@pytest.mark.usefixtures("no_kernels")
def test_loading_says_that_it_goes_on_without_kernels(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        engine, _ = load_engine(str(tiny), threads=1, pool_bytes=1 << 20)
    assert isinstance(engine._forward, ModulesForward)
    assert "without kernels" in caplog.text
