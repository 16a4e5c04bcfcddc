"""Metrics are served where their service is: a scraper is another pod."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import pytest

from forerun.wire import telemetry
from tests.k8s.services import PACKAGES

LISTENING = {"gateway": {"http": "0.0.0.0:0", "grpc": "0.0.0.0:0"}}


class Stopped(Exception):  # noqa: N818 - the service is stopped before it begins
    pass


@pytest.mark.parametrize("service", PACKAGES)
def test_metrics_listen_on_the_host_of_the_service(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def setup(*_names: str, **given: object) -> None:
        seen.update(given)
        raise Stopped

    monkeypatch.setattr(telemetry, "setup", setup)
    settings = importlib.import_module(f"{PACKAGES[service]}.settings").Settings
    serve = importlib.import_module(f"{PACKAGES[service]}.serve").serve
    where = LISTENING.get(service, {"listen": "0.0.0.0:0"})
    with pytest.raises(Stopped):
        asyncio.run(serve(settings(**where, insecure=True, metrics_port=9090), print))
    assert seen["metrics_host"] == "0.0.0.0"  # noqa: S104
    assert seen["metrics_port"] == 9090
