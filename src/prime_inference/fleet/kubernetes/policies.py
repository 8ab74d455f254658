"""Who may talk to whom in a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from prime_inference.fleet.arguments import FRONTEND_PORT, SYSTEM_PORT
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.kubernetes.objects import (
    COMPONENT,
    LABEL,
    Document,
    controller_labels,
    gateway_labels,
    metadata,
)

NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the API server labels every namespace with it


@dataclass(frozen=True, slots=True)
class Place:
    """Where deployments of a fleet are in a cluster; pods of the namespace `monitoring` may read
    their metrics (empty: none)."""

    fleet: str
    namespace: str = "default"
    monitoring: str = ""


def policies(deployment: PlannedDeployment, place: Place) -> list[Document]:
    """Engines hear their own graph only, frontends also the fleet's gateways and controller:
    engines check no key. Who monitors reaches the ports that have metrics; a frontend has its
    metrics where it has everything."""
    mine = {"matchLabels": {LABEL: deployment.id}}
    frontends = {"matchLabels": {LABEL: deployment.id, COMPONENT: "frontend"}}
    labels = (gateway_labels(place.fleet), controller_labels(place.fleet))
    callers: list[Document] = [{"podSelector": {"matchLabels": one}} for one in labels]
    inside: list[Document] = [{"from": [{"podSelector": mine}]}]
    if place.monitoring:
        monitors = {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: place.monitoring}}}
        inside.append({"from": [monitors], "ports": [_tcp(SYSTEM_PORT)]})
        callers.append(monitors)
    outside = [{"from": callers, "ports": [_tcp(FRONTEND_PORT)]}]
    return [
        _policy(f"{deployment.id}-engines", place.namespace, mine, inside),
        _policy(f"{deployment.id}-frontend", place.namespace, frontends, outside),
    ]


def _tcp(port: int) -> Document:
    return {"protocol": "TCP", "port": port}


def _policy(name: str, namespace: str, selector: Document, ingress: list[Document]) -> Document:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(name, namespace, selector["matchLabels"]),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }
