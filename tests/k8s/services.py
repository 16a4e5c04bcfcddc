"""The manifests against the services themselves: flags, variables, addresses and probes."""

from __future__ import annotations

import importlib
from typing import Any
from urllib.parse import urlsplit

import typer
from pydantic import ValidationError

from tests.k8s.cluster import Cluster, Object, pod_spec, title

PACKAGES = {"gateway": "gateway", "verifier": "verifier_service", "drafter": "drafter_service"}
PREFIX = "FORERUN_"
# Read by the engine itself, for every process that loads a model.
ENGINE_VARIABLES = {"FORERUN_CACHE"}
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def options(service: str) -> set[str]:
    """Every flag that `forerun SERVICE --help` lists."""
    app = typer.Typer()
    app.command()(importlib.import_module(f"{PACKAGES[service]}.__main__").run)
    return {name for option in typer.main.get_command(app).params for name in option.opts}


def flags(container: Object) -> dict[str, str]:
    return dict(item.partition("=")[::2] for item in container.get("args", []))


def unknown_settings(cluster: Cluster) -> list[str]:
    """Flags and FORERUN_ variables that the service does not have, and values it would refuse."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        service = container["name"]
        if service not in PACKAGES:
            continue
        settings: Any = importlib.import_module(f"{PACKAGES[service]}.settings").Settings
        known = options(service)
        wrong += [f"{title(workload)} has no {flag}" for flag in flags(container) if flag not in known]
        values = {
            flag.removeprefix("--").replace("-", "_"): value for flag, value in flags(container).items()
        }
        for variable, value in cluster.settings(container).items():
            field = variable.removeprefix(PREFIX).lower()
            if variable.startswith(PREFIX) and variable not in ENGINE_VARIABLES:
                if field not in settings.model_fields:
                    wrong.append(f"{title(workload)} has no {variable}")
                elif field in values:
                    wrong.append(f"{title(workload)} is told {field} twice")
                else:
                    values[field] = value
        try:
            settings(**{key: value for key, value in values.items() if key in settings.model_fields})
        except ValidationError as error:
            wrong += [f"{title(workload)} refuses {each['loc'][0]}" for each in error.errors()]
    return wrong


def broken_addresses(cluster: Cluster) -> list[str]:
    """Ports listened on that no container port names, and addresses dialled that no Service answers."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        if container["name"] not in PACKAGES:
            continue
        given = flags(container)
        told = cluster.settings(container)
        numbers = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
        listens = {
            "grpc": given.get("--listen", given.get("--grpc", "")).rpartition(":")[2],
            "http": given.get("--http", "").rpartition(":")[2],
            "metrics": given.get("--metrics-port", ""),
            "health": told.get("FORERUN_HEALTH_PORT", ""),
        }
        if numbers != {name: port for name, port in listens.items() if port}:
            wrong.append(f"{title(workload)} listens on {listens} and names {numbers}")
        for flag in ("--verifiers", "--drafters", "--redis-url"):
            if flag in given and not _answered(cluster, given[flag]):
                wrong.append(f"{title(workload)} dials {given[flag]}, which no Service answers")
    return wrong


def _answered(cluster: Cluster, url: str) -> bool:
    host, _, port = (
        urlsplit(url).path.lstrip("/") if url.startswith("dns:") else urlsplit(url).netloc
    ).partition(":")
    return any(
        service["metadata"]["name"] == host
        and port in {str(each["port"]) for each in service["spec"]["ports"]}
        for service in cluster.of("Service")
    )


def wrong_probes(cluster: Cluster) -> list[str]:
    """Probes that are missing, ask for a service not registered, or ask where a certificate is demanded."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        service = container["name"]
        wrong += [f"{title(workload)} has no {kind}" for kind in PROBES if kind not in container]
        if service not in PACKAGES:
            continue
        stubs: Any = importlib.import_module(f"forerun.v1.{service}_pb2")
        real = {each.full_name for each in stubs.DESCRIPTOR.services_by_name.values()}
        secured = "FORERUN_TLS_CERT" in cluster.settings(container)
        plain = [port["containerPort"] for port in container["ports"] if port["name"] == "health"]
        for kind in PROBES:
            asked = container.get(kind, {}).get("grpc")
            if asked is None:
                wrong.append(f"{title(workload)} {kind} is not a gRPC probe")
            elif asked.get("service") not in real:
                wrong.append(f"{title(workload)} {kind} asks for {asked.get('service')}")
            elif secured and asked["port"] not in plain:
                wrong.append(f"{title(workload)} {kind} holds no certificate for port {asked['port']}")
    return wrong


def unclear_encryption(cluster: Cluster) -> list[str]:
    """Services that are neither told that plain traffic is meant nor given a certificate that is mounted."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        if container["name"] not in PACKAGES:
            continue
        told = cluster.settings(container)
        insecure = told.get("FORERUN_INSECURE") == "true"
        files = [told.get(f"FORERUN_TLS_{part}", "") for part in ("CERT", "KEY", "CA")]
        if insecure == any(files):
            wrong.append(f"{title(workload)} is told both or neither of TLS and plain")
        mounts = {mount["name"]: mount["mountPath"] for mount in container.get("volumeMounts", [])}
        secrets = [volume["name"] for volume in pod_spec(workload)["volumes"] if "secret" in volume]
        folders = {mounts.get(name) for name in secrets}
        if any(files) and not all(path.rpartition("/")[0] in folders for path in files):
            wrong.append(f"{title(workload)} reads {files}, where no Secret is mounted")
    return wrong
