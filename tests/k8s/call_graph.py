"""Who may talk to whom, computed from rendered NetworkPolicies as a cluster's network would enforce them.

Between two pods of ours a port is open only when the caller's egress *and* the callee's ingress allow it. A
pod that no policy of a direction selects is open in that direction. Peers elsewhere are named by the
namespace's label or the address block in the policy, and judged by our side alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.k8s.cluster import Cluster, Object, pod_labels, pod_spec, selects

ANYONE = "anyone"


class Edge(NamedTuple):
    caller: str
    callee: str
    port: int


def edges(cluster: Cluster) -> set[Edge]:
    """Every TCP or UDP port that is open between two of our workloads or to and from the outside."""
    found: set[Edge] = set()
    for workload in cluster.workloads:
        name = workload["metadata"]["name"]
        found |= {Edge(peer, name, port) for peer, port in _outside(cluster, workload, "Ingress")}
        found |= {Edge(name, peer, port) for peer, port in _outside(cluster, workload, "Egress")}
        for callee in cluster.workloads:
            if callee is workload:
                continue
            for port in _numbers(callee).values():
                out = _allows(cluster, workload, "Egress", callee, port)
                if out and _allows(cluster, callee, "Ingress", workload, port):
                    found.add(Edge(name, callee["metadata"]["name"], port))
    return found


def _policies(cluster: Cluster, workload: Object, direction: str) -> list[Object]:
    return [
        policy["spec"]
        for policy in cluster.of("NetworkPolicy")
        if direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], pod_labels(workload))
    ]


def _rules(cluster: Cluster, workload: Object, direction: str) -> list[Object]:
    return [
        rule
        for policy in _policies(cluster, workload, direction)
        for rule in policy.get(direction.lower(), [])
    ]


def _peers(rule: Object, direction: str) -> list[Any]:
    peers: list[Any] = rule.get("from" if direction == "Ingress" else "to", [])
    return peers


def _allows(cluster: Cluster, workload: Object, direction: str, other: Object, port: int) -> bool:
    """Whether `workload`'s policies of `direction` let it deal with `other`; `port` is the callee's."""
    if not _policies(cluster, workload, direction):
        return True
    callee = workload if direction == "Ingress" else other
    for rule in _rules(cluster, workload, direction):
        ports = {_number(callee, item["port"]) for item in rule.get("ports", [])}
        if ports and port not in ports:
            continue
        peers = _peers(rule, direction)
        if not peers or any(_is_ours(peer, other) for peer in peers):
            return True
    return False


def _is_ours(peer: Object, other: Object) -> bool:
    if "ipBlock" in peer:
        return False
    elsewhere = peer.get("namespaceSelector")
    if elsewhere is not None and elsewhere != {}:
        namespace = {"kubernetes.io/metadata.name": other["metadata"]["namespace"]}
        if not selects(elsewhere, namespace):
            return False
    return selects(peer.get("podSelector", {}), pod_labels(other))


def _outside(cluster: Cluster, workload: Object, direction: str) -> set[tuple[str, int]]:
    if not _policies(cluster, workload, direction):
        return {(ANYONE, 0)}
    found: set[tuple[str, int]] = set()
    for rule in _rules(cluster, workload, direction):
        ports = [_number(workload, item["port"]) for item in rule.get("ports", [])] or [0]
        names = [_outsider(peer) for peer in _peers(rule, direction)] or [ANYONE]
        found |= {(name, port) for name in names if name for port in ports}
    return found


def _outsider(peer: Object) -> str:
    """A name for a peer outside our namespace; "" for one inside it."""
    if "ipBlock" in peer:
        return str(peer["ipBlock"]["cidr"])
    if "namespaceSelector" not in peer:
        return ""
    pods = peer.get("podSelector", {})
    labels = peer["namespaceSelector"].get("matchLabels", {}) | pods.get("matchLabels", {})
    return " ".join(f"{key}={value}" for key, value in sorted(labels.items())) or ANYONE


def _numbers(workload: Object) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"]
        for each in pod_spec(workload)["containers"]
        for port in each.get("ports", [])
    }


def _number(workload: Object, port: int | str) -> int:
    return port if isinstance(port, int) else _numbers(workload)[port]
