"""The Dockerfiles against the manifests and the package; no image is built here."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.k8s.cluster import Cluster, pod_spec
from tests.k8s.services import PACKAGES

ROOT = Path(__file__).resolve().parents[2]


def instructions(service: str) -> list[tuple[str, str]]:
    """(instruction, arguments) pairs of that service's Dockerfile, continued lines joined."""
    text = (ROOT / "docker" / f"{service}.Dockerfile").read_text()
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [(line.split()[0], line.partition(" ")[2]) for line in lines if line and not line.startswith("#")]


def last_stage(service: str) -> dict[str, str]:
    """The final image's instructions; of repeated ones the last."""
    found: dict[str, str] = {}
    for name, arguments in instructions(service):
        found = {} if name == "FROM" else found
        found[name] = arguments
    return found


def requirements() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


@pytest.mark.parametrize("service", PACKAGES)
def test_an_image_runs_as_the_user_its_pod_asks_for(compose: Callable[..., Cluster], service: str) -> None:
    context = pod_spec(compose("cpu").workload(service))["securityContext"]
    assert last_stage(service)["USER"] == f"{context['runAsUser']}:{context['runAsGroup']}"


@pytest.mark.parametrize("service", PACKAGES)
def test_an_image_exposes_the_ports_of_its_pod(compose: Callable[..., Cluster], service: str) -> None:
    (container,) = pod_spec(compose("cpu").workload(service))["containers"]
    ports = {str(port["containerPort"]) for port in container["ports"]}
    assert set(last_stage(service)["EXPOSE"].split()) == ports


@pytest.mark.parametrize("service", PACKAGES)
def test_an_image_starts_the_service_as_python_runs_it(service: str) -> None:
    assert json.loads(last_stage(service)["ENTRYPOINT"]) == ["python", "-m", PACKAGES[service]]
    assert importlib.util.find_spec(f"{PACKAGES[service]}.__main__") is not None


@pytest.mark.parametrize("service", PACKAGES)
def test_an_image_is_built_in_stages_from_one_pinned_python(service: str) -> None:
    bases = [arguments for name, arguments in instructions(service) if name == "FROM"]
    assert len(bases) == 2
    assert {base.partition(" ")[0] for base in bases} == {"python:${PYTHON}-slim-bookworm"}


@pytest.mark.parametrize("service", PACKAGES)
def test_an_image_installs_extras_that_the_package_has(service: str) -> None:
    text = (ROOT / "docker" / f"{service}.Dockerfile").read_text()
    extras = set(re.findall(r"\[(\w+)\]'", text))
    assert extras
    assert extras <= set(requirements()["optional-dependencies"])


def test_the_gateway_needs_no_torch_however_deep_one_looks() -> None:
    project = requirements()
    waiting = [Requirement(line) for line in project["dependencies"]]
    waiting += [Requirement(line) for line in project["optional-dependencies"]["gateway"]]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in requirement.extras | {""}:
            key = f"{requirement.name.lower()}[{extra}]"
            if key not in seen:
                seen.add(key)
                wanted = [Requirement(line) for line in metadata.requires(requirement.name) or ()]
                environment = {"extra": extra}
                waiting += [each for each in wanted if not each.marker or each.marker.evaluate(environment)]
    names = {key.partition("[")[0] for key in seen}
    assert "fastapi" in names
    assert names.isdisjoint({"torch", "transformers", "safetensors", "gguf"})


def test_the_build_context_holds_what_a_build_needs_and_nothing_private() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] not in ("", "#")]
    assert lines[0] == "*"
    let_in = {line[1:] for line in lines if line.startswith("!")}
    project = requirements()
    needed = {"pyproject.toml", project["readme"], *project["license-files"], "forerun", *PACKAGES.values()}
    assert let_in == needed


def test_every_image_is_named_with_a_tag(cluster: Cluster) -> None:
    for _, container in cluster.containers():
        assert re.fullmatch(r"[a-z/-]+:[\w.-]+", container["image"])
        assert not container["image"].endswith(":latest")
