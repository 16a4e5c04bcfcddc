"""Which device a process computes on."""

from __future__ import annotations

import os

import torch

from forerun.errors import InvalidRequest

DEVICES = ("auto", "cpu", "cuda")


def device_asked(asked: str | None = None) -> str:
    """`asked`, else $FORERUN_DEVICE, else auto. Raises InvalidRequest for another word."""
    said = asked or os.environ.get("FORERUN_DEVICE") or "auto"
    if said not in DEVICES:
        raise InvalidRequest(f"device {said!r} is not one of {', '.join(DEVICES)}", field="device")
    return said


def choose_device(said: str) -> torch.device:
    """The GPU for cuda, the CPUs for cpu, and for auto the GPU where one answers.

    Raises InvalidRequest for cuda where none does.
    """
    there = torch.cuda.is_available()
    if said == "cuda" and not there:
        why = "no GPU answers" if torch.version.cuda else "this build of torch knows no CUDA"
        raise InvalidRequest(f"cuda cannot be used: {why}", field="device", reason="NO_DEVICE")
    if said == "cpu" or not there:
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
