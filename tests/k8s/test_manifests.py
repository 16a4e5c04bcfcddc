"""What is rendered is valid for every supported Kubernetes, and holds together."""

from __future__ import annotations

from collections.abc import Callable

import kubernetes_validate
import pytest

from tests.k8s.call_graph import edges
from tests.k8s.cluster import K8S, Cluster, pod_spec
from tests.k8s.conftest import BROUGHT, COMPOSITIONS
from tests.k8s.pod_security import loose_pods
from tests.k8s.references import broken_ports, broken_selectors, short_grace, unresolved
from tests.k8s.services import broken_addresses, unclear_encryption, unknown_settings, wrong_probes

VERSIONS = ("1.33", kubernetes_validate.latest_version())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_valid_under_the_strict_schema(cluster: Cluster, version: str) -> None:
    for item in cluster.objects:
        kubernetes_validate.validate(item, version, strict=True)


def test_every_overlay_and_component_is_rendered_by_these_tests() -> None:
    overlays = {path.name for path in (K8S / "overlays").iterdir()}
    assert overlays == {name.split()[0] for name in COMPOSITIONS}
    used = {"gpu-product", "model-hub"}.union(*COMPOSITIONS.values())
    assert {path.name for path in (K8S / "components").iterdir()} == used


def test_everything_lives_in_one_namespace_that_enforces_the_restricted_standard(cluster: Cluster) -> None:
    (namespace,) = cluster.of("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    others = {item["metadata"].get("namespace") for item in cluster.objects if item is not namespace}
    assert others == {namespace["metadata"]["name"]}


def test_every_selector_finds_the_pods_it_means(cluster: Cluster) -> None:
    assert broken_selectors(cluster) == []


def test_every_port_that_is_named_exists(cluster: Cluster) -> None:
    assert broken_ports(cluster) == []


def test_every_reference_resolves(cluster: Cluster) -> None:
    assert unresolved(cluster, BROUGHT) == []


def test_only_mutual_tls_asks_for_objects_from_outside(compose: Callable[..., Cluster]) -> None:
    assert unresolved(compose("cpu")) == []
    missing = unresolved(compose("cpu", "mtls"))
    assert {line.rpartition(" names ")[2] for line in missing} == BROUGHT


def test_every_pod_meets_the_restricted_standard(cluster: Cluster) -> None:
    assert loose_pods(cluster) == []


def test_a_pod_is_killed_only_after_its_drain(cluster: Cluster) -> None:
    assert short_grace(cluster) == []


def test_every_flag_and_variable_is_one_the_service_has(cluster: Cluster) -> None:
    assert unknown_settings(cluster) == []


def test_every_address_is_listened_on_and_answered(cluster: Cluster) -> None:
    assert broken_addresses(cluster) == []


def test_probes_ask_for_services_that_the_servers_register(cluster: Cluster) -> None:
    assert wrong_probes(cluster) == []


def test_plain_traffic_is_always_asked_for_in_words(cluster: Cluster) -> None:
    assert unclear_encryption(cluster) == []


def test_only_redis_goes_without_a_disruption_budget(cluster: Cluster) -> None:
    assert cluster.names("PodDisruptionBudget") == {"gateway", "verifier", "drafter"}
    for budget in cluster.of("PodDisruptionBudget"):
        workload = cluster.workload(budget["metadata"]["name"])
        assert budget["spec"]["maxUnavailable"] < workload["spec"].get("replicas", 2)


def test_an_overlay_of_ones_own_moves_everything_to_another_namespace(
    compose: Callable[..., Cluster],
) -> None:
    cluster = compose("gpu", "mtls", "metrics", "tracing", "autoscaling", namespace="elsewhere")
    (namespace,) = cluster.of("Namespace")
    assert namespace["metadata"]["name"] == "elsewhere"
    others = [item for item in cluster.objects if item is not namespace]
    assert {item["metadata"]["namespace"] for item in others} == {"elsewhere"}
    assert edges(cluster) == edges(compose("gpu", "mtls", "metrics", "tracing", "autoscaling"))


def test_model_services_are_headless_so_that_single_replicas_are_found(cluster: Cluster) -> None:
    for name in ("verifier", "drafter"):
        assert cluster.find("Service", name)["spec"]["clusterIP"] == "None"


def test_redis_writes_to_disk_before_it_answers(cluster: Cluster) -> None:
    redis = cluster.workload("redis")
    (volume,) = [each for each in pod_spec(redis)["volumes"] if "configMap" in each]
    text = cluster.find("ConfigMap", volume["configMap"]["name"])["data"]["valkey.conf"]
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(lines)
    (claim,) = redis["spec"]["volumeClaimTemplates"]
    mounts = {each["name"]: each["mountPath"] for each in pod_spec(redis)["containers"][0]["volumeMounts"]}
    assert f"dir {mounts[claim['metadata']['name']]}" in lines


def test_a_gpu_overlay_asks_for_tolerated_gpus_of_two_sizes(compose: Callable[..., Cluster]) -> None:
    cluster = compose("gpu")
    products: dict[str, set[str]] = {}
    for name in ("verifier", "drafter"):
        spec = pod_spec(cluster.workload(name))
        assert spec["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec["tolerations"]
        needs = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        (term,) = needs["nodeSelectorTerms"]
        (expression,) = term["matchExpressions"]
        assert expression["key"] == "nvidia.com/gpu.product"
        products[name] = set(expression["values"])
    assert products["verifier"].isdisjoint(products["drafter"])
    gateway = pod_spec(cluster.workload("gateway"))
    assert "nvidia.com/gpu" not in gateway["containers"][0]["resources"]["limits"]


def test_a_cpu_overlay_gives_torch_as_many_threads_as_it_asks_cores(compose: Callable[..., Cluster]) -> None:
    cluster = compose("cpu")
    for name in ("verifier", "drafter"):
        (container,) = pod_spec(cluster.workload(name))["containers"]
        resources = container["resources"]
        assert cluster.settings(container)["FORERUN_THREADS"] == resources["requests"]["cpu"]
        assert resources["limits"]["cpu"] == resources["requests"]["cpu"]


def test_an_autoscaled_gateway_has_no_count_to_be_reset_to(compose: Callable[..., Cluster]) -> None:
    assert "replicas" not in compose("cpu", "autoscaling").workload("gateway")["spec"]
    assert compose("cpu").workload("gateway")["spec"]["replicas"] >= 2
