"""The objects that a kustomization renders to, and how they are looked up."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

K8S = Path(__file__).resolve().parents[2] / "k8s"

Object = dict[str, Any]


@dataclass(frozen=True)
class Cluster:
    """Everything one kustomization makes."""

    objects: list[Object]

    def of(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def find(self, kind: str, name: str) -> Object:
        """The one object of that kind and name; KeyError when there is none or more than one."""
        found = [item for item in self.of(kind) if item["metadata"]["name"] == name]
        if len(found) != 1:
            raise KeyError(f"{len(found)} of {kind}/{name}")
        return found[0]

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.of(kind)}

    @property
    def workloads(self) -> list[Object]:
        return self.of("Deployment", "StatefulSet")

    def workload(self, name: str) -> Object:
        (found,) = [item for item in self.workloads if item["metadata"]["name"] == name]
        return found

    def containers(self) -> Iterator[tuple[Object, Object]]:
        """(workload, container) pairs, init containers included."""
        for workload in self.workloads:
            spec = workload["spec"]["template"]["spec"]
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                yield workload, container

    def settings(self, container: Object) -> dict[str, str]:
        """The container's literal variables, those of its ConfigMaps included."""
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            found |= self.find("ConfigMap", source["configMapRef"]["name"])["data"]
        found |= {item["name"]: item["value"] for item in container.get("env", []) if "value" in item}
        return found


def pod_labels(workload: Object) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def pod_spec(workload: Object) -> Object:
    spec: Object = workload["spec"]["template"]["spec"]
    return spec


def title(item: Object) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


def selects(selector: Object, labels: dict[str, str]) -> bool:
    """Whether a label selector (matchLabels and matchExpressions; {} selects all) matches."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", []):
        value, values = labels.get(expression["key"]), expression.get("values", [])
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[expression["operator"]]
        if not holds:
            return False
    return True


def render(folder: Path) -> Cluster:
    """What `kubectl kustomize` makes of `folder`. Raises CalledProcessError, `stderr` says why."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise FileNotFoundError("kubectl")
    run = subprocess.run([kubectl, "kustomize", str(folder)], check=True, capture_output=True, text=True)
    return Cluster([item for item in yaml.safe_load_all(run.stdout) if item])
