"""The network lets through the call graph, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from tests.k8s.call_graph import Edge, edges
from tests.k8s.cluster import Cluster

CLIENTS = "forerun/clients=true"
DNS = "k8s-app=kube-dns kubernetes.io/metadata.name=kube-system"
CALLS = {
    Edge(CLIENTS, "gateway", 8080),
    Edge(CLIENTS, "gateway", 8081),
    Edge("gateway", "verifier", 7001),
    Edge("gateway", "drafter", 7101),
    Edge("gateway", "redis", 6379),
    Edge("drafter", "verifier", 7001),
    Edge("gateway", DNS, 53),
    Edge("drafter", DNS, 53),
}


def test_only_the_call_graph_is_open(compose: Callable[..., Cluster]) -> None:
    assert edges(compose("cpu")) == CALLS


def test_mutual_tls_opens_no_port(compose: Callable[..., Cluster]) -> None:
    assert edges(compose("cpu", "mtls")) == CALLS


def test_metrics_open_the_scrape_and_no_more(compose: Callable[..., Cluster]) -> None:
    prometheus = "app.kubernetes.io/name=prometheus kubernetes.io/metadata.name=monitoring"
    scrapes = {Edge(prometheus, name, 9090) for name in ("gateway", "verifier", "drafter")}
    assert edges(compose("cpu", "metrics")) == CALLS | scrapes


def test_tracing_opens_the_collector_and_no_more(compose: Callable[..., Cluster]) -> None:
    collector = "app.kubernetes.io/name=otel-collector kubernetes.io/metadata.name=observability"
    traces = {Edge(name, collector, 4317) for name in ("gateway", "verifier", "drafter")}
    assert edges(compose("cpu", "tracing")) == CALLS | traces | {Edge("verifier", DNS, 53)}


def test_models_from_a_hub_open_https_for_those_who_load_them(compose: Callable[..., Cluster]) -> None:
    hub = {Edge(name, "0.0.0.0/0", 443) for name in ("verifier", "drafter")}
    assert edges(compose("gpu")) == CALLS | hub | {Edge("verifier", DNS, 53)}


def test_every_pod_is_denied_both_directions_first(cluster: Cluster) -> None:
    policy = cluster.find("NetworkPolicy", "default-deny")["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
