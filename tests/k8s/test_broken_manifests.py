"""Each check sees the fault it is there for: a copy of the manifests is broken, and one line tells where."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from tests.k8s.call_graph import ANYONE, Edge, edges
from tests.k8s.cluster import Cluster, Object, pod_spec
from tests.k8s.pod_security import loose_pods
from tests.k8s.references import broken_ports, broken_selectors, short_grace, unresolved
from tests.k8s.services import broken_addresses, unclear_encryption, unknown_settings, wrong_probes

Check = Callable[[Cluster], list[str]]


def container(cluster: Cluster, name: str) -> Object:
    found: Object = pod_spec(cluster.workload(name))["containers"][0]
    return found


def relabel(cluster: Cluster) -> None:
    cluster.workload("verifier")["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] = "v"


def select_two(cluster: Cluster) -> None:
    cluster.find("Service", "redis")["spec"]["selector"] = {"app.kubernetes.io/part-of": "forerun"}


def select_none(cluster: Cluster) -> None:
    budget = cluster.find("PodDisruptionBudget", "drafter")
    budget["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] = "draughter"


def rename_port(cluster: Cluster) -> None:
    container(cluster, "verifier")["ports"][0]["name"] = "rpc"


def probe_elsewhere(cluster: Cluster) -> None:
    container(cluster, "drafter")["readinessProbe"]["grpc"]["port"] = 7100


def forget_config(cluster: Cluster) -> None:
    cluster.objects.remove(cluster.find("ConfigMap", name_of(cluster, "drafter-settings")))


def forget_account(cluster: Cluster) -> None:
    cluster.objects.remove(cluster.find("ServiceAccount", "redis"))


def forget_claim(cluster: Cluster) -> None:
    del cluster.workload("redis")["spec"]["volumeClaimTemplates"]


def expand_too_early(cluster: Cluster) -> None:
    container(cluster, "verifier")["env"].insert(0, {"name": "HOST", "value": "$(POD_IP):7001"})


def expand_nothing(cluster: Cluster) -> None:
    container(cluster, "gateway")["args"].append("--name=$(POD_NAME)")


def allow_root(cluster: Cluster) -> None:
    pod_spec(cluster.workload("redis"))["securityContext"]["runAsUser"] = 0


def write_root(cluster: Cluster) -> None:
    container(cluster, "gateway")["securityContext"]["readOnlyRootFilesystem"] = False


def keep_capability(cluster: Cluster) -> None:
    container(cluster, "verifier")["securityContext"]["capabilities"]["add"] = ["NET_RAW"]


def mount_node(cluster: Cluster) -> None:
    pod_spec(cluster.workload("verifier"))["volumes"].append({"name": "dev", "hostPath": {"path": "/dev"}})


def hurry(cluster: Cluster) -> None:
    pod_spec(cluster.workload("verifier"))["terminationGracePeriodSeconds"] = 60


def invent_flag(cluster: Cluster) -> None:
    container(cluster, "verifier")["args"].append("--speculate=hard")


def invent_variable(cluster: Cluster) -> None:
    settings(cluster, "drafter-settings")["FORERUN_SPECULATE"] = "hard"


def say_nonsense(cluster: Cluster) -> None:
    container(cluster, "verifier")["env"].append({"name": "FORERUN_WINDOW", "value": "wide"})


def dial_nobody(cluster: Cluster) -> None:
    change_flag(cluster, "gateway", "--verifiers=dns:///verifier:7001", "--verifiers=dns:///target:7001")


def listen_elsewhere(cluster: Cluster) -> None:
    change_flag(cluster, "drafter", "--listen=0.0.0.0:7101", "--listen=0.0.0.0:7102")


def probe_a_stranger(cluster: Cluster) -> None:
    container(cluster, "verifier")["livenessProbe"]["grpc"]["service"] = "forerun.v1.Verifier"


def probe_not_at_all(cluster: Cluster) -> None:
    del container(cluster, "redis")["startupProbe"]


def say_nothing_of_plain(cluster: Cluster) -> None:
    del settings(cluster, "verifier-settings")["FORERUN_INSECURE"]


def name_of(cluster: Cluster, prefix: str) -> str:
    (name,) = [name for name in cluster.names("ConfigMap") if name.startswith(prefix)]
    return name


def settings(cluster: Cluster, prefix: str) -> dict[str, str]:
    data: dict[str, str] = cluster.find("ConfigMap", name_of(cluster, prefix))["data"]
    return data


def change_flag(cluster: Cluster, name: str, old: str, new: str) -> None:
    arguments = container(cluster, name)["args"]
    arguments[arguments.index(old)] = new


FAULTS: list[tuple[Callable[[Cluster], None], Check, str]] = [
    (relabel, broken_selectors, "StatefulSet/verifier does not select its own pods"),
    (select_two, broken_selectors, "Service/redis selects ["),
    (select_none, broken_selectors, "PodDisruptionBudget/drafter selects nothing"),
    (rename_port, broken_ports, "Service/verifier sends to grpc"),
    (rename_port, broken_ports, "NetworkPolicy/verifier opens grpc"),
    (probe_elsewhere, broken_ports, "StatefulSet/drafter readinessProbe asks port 7100"),
    (forget_config, unresolved, "StatefulSet/drafter names ConfigMap/drafter-settings"),
    (forget_account, unresolved, "StatefulSet/redis names ServiceAccount/redis"),
    (forget_claim, unresolved, "StatefulSet/redis mounts data"),
    (expand_too_early, unresolved, "StatefulSet/verifier uses $(POD_IP) unset"),
    (expand_nothing, unresolved, "Deployment/gateway uses $(POD_NAME) unset"),
    (allow_root, loose_pods, "StatefulSet/redis: runs as root"),
    (write_root, loose_pods, "Deployment/gateway: writable root file system"),
    (keep_capability, loose_pods, "StatefulSet/verifier: keeps capabilities"),
    (mount_node, loose_pods, "StatefulSet/verifier: volume of a kind not allowed"),
    (hurry, short_grace, "StatefulSet/verifier gets 60 s for 5 + 60 + 5"),
    (invent_flag, unknown_settings, "StatefulSet/verifier has no --speculate"),
    (invent_variable, unknown_settings, "StatefulSet/drafter has no FORERUN_SPECULATE"),
    (say_nonsense, unknown_settings, "StatefulSet/verifier refuses window"),
    (dial_nobody, broken_addresses, "Deployment/gateway dials dns:///target:7001"),
    (listen_elsewhere, broken_addresses, "StatefulSet/drafter listens on"),
    (probe_a_stranger, wrong_probes, "StatefulSet/verifier livenessProbe asks for forerun.v1.Verifier"),
    (probe_not_at_all, wrong_probes, "StatefulSet/redis has no startupProbe"),
    (say_nothing_of_plain, unclear_encryption, "StatefulSet/verifier is told both or neither"),
]


@pytest.fixture
def whole(compose: Callable[..., Cluster], _rendered: dict[str, Cluster]) -> Cluster:
    if not _rendered:
        _rendered["cpu"] = compose("cpu")
    return copy.deepcopy(_rendered["cpu"])


@pytest.fixture(scope="module")
def _rendered() -> dict[str, Cluster]:
    return {}


@pytest.mark.parametrize(
    ("break_it", "check", "line"), FAULTS, ids=lambda part: getattr(part, "__name__", "")
)
def test_a_fault_is_named(
    whole: Cluster, break_it: Callable[[Cluster], None], check: Check, line: str
) -> None:
    assert check(whole) == []
    break_it(whole)
    assert [found for found in check(whole) if found.startswith(line)]


def test_a_probe_on_a_port_that_demands_a_certificate_is_named(compose: Callable[..., Cluster]) -> None:
    secured = copy.deepcopy(compose("cpu", "mtls"))
    container(secured, "verifier")["readinessProbe"]["grpc"]["port"] = 7001
    line = "StatefulSet/verifier readinessProbe holds no certificate for port 7001"
    assert line in wrong_probes(secured)


def test_a_certificate_that_is_not_mounted_is_named(compose: Callable[..., Cluster]) -> None:
    secured = copy.deepcopy(compose("cpu", "mtls"))
    mounts = container(secured, "drafter")["volumeMounts"]
    mounts.remove(next(mount for mount in mounts if mount["name"] == "tls"))
    assert any(line.startswith("StatefulSet/drafter reads") for line in unclear_encryption(secured))


def test_a_field_with_a_typing_error_is_not_valid(whole: Cluster) -> None:
    container(whole, "gateway")["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullPolice"):
        kubernetes_validate.validate(
            whole.workload("gateway"), kubernetes_validate.latest_version(), strict=True
        )


def test_a_policy_forgotten_opens_a_pod_to_anyone(whole: Cluster) -> None:
    before = edges(whole)
    whole.objects.remove(whole.find("NetworkPolicy", "default-deny"))
    whole.objects.remove(whole.find("NetworkPolicy", "redis"))
    assert Edge(ANYONE, "redis", 0) in edges(whole) - before


def test_one_side_alone_opens_nothing(whole: Cluster) -> None:
    before = edges(whole)
    rule: Any = {
        "to": [{"podSelector": {"matchLabels": {"app.kubernetes.io/name": "redis"}}}],
        "ports": [{"port": 6379, "protocol": "TCP"}],
    }
    whole.find("NetworkPolicy", "drafter")["spec"]["egress"].append(rule)
    assert edges(whole) == before
    drafters: Any = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "drafter"}}}
    whole.find("NetworkPolicy", "redis")["spec"]["ingress"][0]["from"].append(drafters)
    assert edges(whole) - before == {Edge("drafter", "redis", 6379)}


def test_a_file_that_is_missing_does_not_render(compose: Callable[..., Cluster]) -> None:
    def lose(folder: Path) -> None:
        (folder / "base" / "network.yaml").unlink()

    with pytest.raises(subprocess.CalledProcessError) as failed:
        compose("cpu", edit=lose)
    assert "network.yaml" in failed.value.stderr
