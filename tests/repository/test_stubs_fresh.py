"""`make check` sees a stub that its .proto file no longer makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stubs_fresh import ROOT, STUBS, generate, stale


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / STUBS, tmp_path / "stubs"))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    generate(folder)
    return folder / STUBS


def test_the_committed_stubs_are_what_the_protos_generate(stubs: Path, generated: Path) -> None:
    assert stale(stubs, generated) == []


def test_a_changed_stub_is_stale(stubs: Path, generated: Path) -> None:
    path = stubs / "verifier_pb2.pyi"
    path.write_text(path.read_text() + "\n")
    assert stale(stubs, generated) == ["verifier_pb2.pyi: stale"]


def test_a_stub_that_was_not_committed_is_missing(stubs: Path, generated: Path) -> None:
    (stubs / "gateway_pb2_grpc.py").unlink()
    assert stale(stubs, generated) == ["gateway_pb2_grpc.py: missing"]


def test_a_stub_whose_proto_is_gone_is_left_over(stubs: Path, generated: Path) -> None:
    (stubs / "rounds_pb2.py").touch()
    assert stale(stubs, generated) == ["rounds_pb2.py: left over"]
