"""What must hold between the objects of one cluster; every check returns one line a fault."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tests.k8s.cluster import Cluster, Object, pod_labels, pod_spec, selects, title


def broken_selectors(cluster: Cluster) -> list[str]:
    """Selectors that miss what they mean: workloads their own pods, all others exactly one workload's."""
    wrong = [
        f"{title(workload)} does not select its own pods"
        for workload in cluster.workloads
        if not selects(workload["spec"]["selector"], pod_labels(workload))
    ]
    for item in cluster.of("Service", "PodDisruptionBudget"):
        selector = item["spec"]["selector"]
        if item["kind"] == "Service":
            selector = {"matchLabels": selector}
        found = [title(each) for each in cluster.workloads if selects(selector, pod_labels(each))]
        if len(found) != 1:
            wrong.append(f"{title(item)} selects {found or 'nothing'}")
    for workload in cluster.workloads:
        for spread in pod_spec(workload).get("topologySpreadConstraints", []):
            if not selects(spread["labelSelector"], pod_labels(workload)):
                wrong.append(f"{title(workload)} spreads pods that are not its own")
    return wrong


def broken_ports(cluster: Cluster) -> list[str]:
    """Ports that are named twice in a pod, or by a service, probe or policy without being there."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        ports = container.get("ports", [])
        for key in ("name", "containerPort"):
            values = [port[key] for port in ports]
            if len(values) != len(set(values)):
                wrong.append(f"{title(workload)} has a {key} twice")
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind, {})
            asked = (probe.get("grpc") or probe.get("httpGet") or probe.get("tcpSocket") or {}).get("port")
            if asked is not None and not _has_port(workload, asked):
                wrong.append(f"{title(workload)} {kind} asks port {asked}, which no container has")
    for service in cluster.of("Service"):
        selector = {"matchLabels": service["spec"]["selector"]}
        for port in service["spec"]["ports"]:
            target = port.get("targetPort", port["port"])
            for workload in cluster.workloads:
                if selects(selector, pod_labels(workload)) and not _has_port(workload, target):
                    wrong.append(f"{title(service)} sends to {target}, which {title(workload)} has not")
    for policy in cluster.of("NetworkPolicy"):
        for rule in policy["spec"].get("ingress", []):
            for port in rule.get("ports", []):
                for workload in cluster.workloads:
                    chosen = selects(policy["spec"]["podSelector"], pod_labels(workload))
                    if chosen and not _has_port(workload, port["port"]):
                        wrong.append(f"{title(policy)} opens {port['port']}, which {title(workload)} has not")
    return wrong


def _has_port(workload: Object, wanted: int | str) -> bool:
    key = "name" if isinstance(wanted, str) else "containerPort"
    return any(
        port[key] == wanted for each in pod_spec(workload)["containers"] for port in each.get("ports", [])
    )


def unresolved(cluster: Cluster, brought: Collection[str] = ()) -> list[str]:
    """ConfigMaps, Secrets, service accounts, claims, volumes, scale targets and variables that are named
    but not there; `brought` are titles of objects the operator supplies."""
    wrong: list[str] = []

    def need(owner: Object, kind: str, name: str) -> None:
        if name not in cluster.names(kind) and f"{kind}/{name}" not in brought:
            wrong.append(f"{title(owner)} names {kind}/{name}")

    for workload in cluster.workloads:
        spec = pod_spec(workload)
        need(workload, "ServiceAccount", spec.get("serviceAccountName", "default"))
        if workload["kind"] == "StatefulSet":
            need(workload, "Service", workload["spec"]["serviceName"])
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                need(workload, "ConfigMap", volume["configMap"]["name"])
            if "secret" in volume:
                need(workload, "Secret", volume["secret"]["secretName"])
            if "persistentVolumeClaim" in volume:
                need(workload, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])
        claims = {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
        have = claims | {volume["name"] for volume in spec.get("volumes", [])}
        used = {mount["name"] for each in spec["containers"] for mount in each.get("volumeMounts", [])}
        wrong += [f"{title(workload)} mounts {name}, no volume" for name in sorted(used - have)]
        wrong += [f"{title(workload)} never mounts {name}" for name in sorted(have - used)]
    for workload, container in cluster.containers():
        for source in container.get("envFrom", []):
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if key in source:
                    need(workload, kind, source[key]["name"])
        for item in container.get("env", []):
            wrong += _unresolved_key(cluster, workload, item.get("valueFrom", {}), brought)
        wrong += _unresolved_variables(workload, container)
    for scaler in cluster.of("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        need(scaler, target["kind"], target["name"])
    return wrong


def _unresolved_key(cluster: Cluster, owner: Object, source: Any, brought: Collection[str]) -> list[str]:
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if key in source:
            name = source[key]["name"]
            found = [item for item in cluster.of(kind) if item["metadata"]["name"] == name]
            held = any(source[key]["key"] in item.get("data", {}) for item in found)
            if not held and f"{kind}/{name}" not in brought:
                return [f"{title(owner)} names {kind}/{name} key {source[key]['key']}"]
    return []


def _unresolved_variables(workload: Object, container: Object) -> list[str]:
    """$(NAME) in an argument needs the variable; in a variable's value it needs an *earlier* one."""
    wrong: list[str] = []
    known: set[str] = set()
    for item in container.get("env", []):
        wrong += _missing(workload, item.get("value", ""), known)
        known.add(item["name"])
    for argument in [*container.get("command", []), *container.get("args", [])]:
        wrong += _missing(workload, argument, known)
    return wrong


def _missing(workload: Object, text: str, known: set[str]) -> list[str]:
    names = [part.split(")")[0] for part in text.split("$(")[1:]]
    return [f"{title(workload)} uses $({name}) unset" for name in names if name not in known]


def short_grace(cluster: Cluster, margin_s: int = 5) -> list[str]:
    """Pods that are killed before preStop and the drain of --grace-s are over."""
    wrong: list[str] = []
    for workload, container in cluster.containers():
        pause = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        flags = [item for item in container.get("args", []) if item.startswith("--grace-s=")]
        drain = float(flags[0].partition("=")[2]) if flags else 0.0
        given = pod_spec(workload).get("terminationGracePeriodSeconds", 30)
        if given < pause + drain + margin_s:
            wrong.append(f"{title(workload)} gets {given} s for {pause} + {drain:g} + {margin_s}")
    return wrong
