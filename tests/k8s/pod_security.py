"""The restricted pod security standard, and what this project asks on top of it."""

from __future__ import annotations

from tests.k8s.cluster import Cluster, Object, pod_spec, title

VOLUMES = {"configMap", "emptyDir", "secret", "projected", "downwardAPI", "persistentVolumeClaim"}


def loose_pods(cluster: Cluster) -> list[str]:
    """One line for each way in which a pod or container is less locked down than it has to be."""
    wrong: list[str] = []
    for workload in cluster.workloads:
        wrong += [f"{title(workload)}: {line}" for line in _loose_pod(pod_spec(workload))]
    for workload, container in cluster.containers():
        wrong += [f"{title(workload)}: {line}" for line in _loose_container(container)]
    return wrong


def _loose_pod(spec: Object) -> list[str]:
    context = spec.get("securityContext", {})
    demands = {
        "runs as root": context.get("runAsNonRoot") is True and context.get("runAsUser", 0) > 0,
        "root's group": context.get("runAsGroup", 0) > 0,
        "no seccomp profile": context.get("seccompProfile", {}).get("type") == "RuntimeDefault",
        "carries a service account token": spec.get("automountServiceAccountToken") is False,
        "takes service links as variables": spec.get("enableServiceLinks") is False,
        "shares the node": not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")),
        "volume of a kind not allowed": all(
            set(volume) - {"name"} <= VOLUMES for volume in spec.get("volumes", [])
        ),
        "emptyDir without a limit": all(
            "sizeLimit" in volume["emptyDir"] for volume in spec.get("volumes", []) if "emptyDir" in volume
        ),
    }
    return [name for name, holds in demands.items() if not holds]


def _loose_container(container: Object) -> list[str]:
    context = container.get("securityContext", {})
    resources = container.get("resources", {})
    demands = {
        "may escalate": context.get("allowPrivilegeEscalation") is False,
        "privileged": not context.get("privileged"),
        "writable root file system": context.get("readOnlyRootFilesystem") is True,
        "keeps capabilities": context.get("capabilities") == {"drop": ["ALL"]},
        "overrides the pod's user": context.get("runAsUser", 1) > 0 and context.get("runAsNonRoot", True),
        "host port": not any("hostPort" in port for port in container.get("ports", [])),
        "no requests": {"cpu", "memory"} <= set(resources.get("requests", {})),
        "no memory limit": "memory" in resources.get("limits", {}),
    }
    return [name for name, holds in demands.items() if not holds]
