"""Where a process computes is said once, and what cannot be is refused by name."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forerun.engine import load
from forerun.engine.device import choose_device, device_asked
from forerun.engine.load import load_engine
from forerun.engine.native.forward import NativeForward
from forerun.errors import InvalidRequest


def test_the_argument_is_taken_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORERUN_DEVICE", raising=False)
    assert device_asked() == "auto"
    monkeypatch.setenv("FORERUN_DEVICE", "cpu")
    assert device_asked() == "cpu"
    assert device_asked("auto") == "auto"


def test_an_unknown_device_is_refused(tiny: Path) -> None:
    with pytest.raises(InvalidRequest, match="'tpu' is not one of auto, cpu, cuda") as caught:
        load_engine(str(tiny), device="tpu")
    assert caught.value.field == "device"


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidRequest, match="cuda cannot be used: ") as caught:
        choose_device("cuda")
    assert caught.value.reason == "NO_DEVICE"
    assert choose_device("auto").type == choose_device("cpu").type == "cpu"


def test_auto_takes_a_gpu_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda", 0)
    assert choose_device("cpu").type == "cpu"


@pytest.fixture
def no_torch_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU answers, as far as can be told without one: loading onto it stops at the model's configuration."""
    monkeypatch.setattr(load, "choose_device", lambda said: torch.device("cuda" if said != "cpu" else "cpu"))


@pytest.mark.usefixtures("no_torch_for_others")
def test_an_architecture_without_a_gpu_path_computes_on_cpus_unless_a_gpu_was_named(
    family: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(InvalidRequest, match="gpt2"):
        load_engine(str(family("gpt2")), device="cuda", threads=1, pool_bytes=8 << 20)
    with caplog.at_level(logging.WARNING):
        engine, _ = load_engine(str(family("gpt2")), device="auto", threads=1, pool_bytes=8 << 20)
    assert engine.model.vocab_size
    assert "the GPU stays unused" in caplog.text


def test_on_cpus_the_kernels_compute(tiny: Path) -> None:
    engine, _ = load_engine(str(tiny), device="cpu", threads=1, pool_bytes=1 << 20)
    assert isinstance(engine._forward, NativeForward)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("service", "flag"), [("verifier_service", "--model={}"), ("drafter_service", "--source=model:{}")]
)
def test_a_service_told_to_use_a_gpu_that_is_not_there_says_so_and_ends(
    tiny: Path, service: str, flag: str
) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", service, flag.format(tiny), "--device=cuda", "--listen=127.0.0.1:0"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "cuda cannot be used" in ran.stderr
    assert "Traceback" not in ran.stderr
