"""What objects of a cluster share: names, labels, and the kinds that more than one part uses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Document = dict[str, Any]

LABEL = "inference.prime/deployment"
FLEET = "inference.prime/fleet"
MANAGED = "inference.prime/managed-by"  # on what a controller keeps
COMPONENT = "app.kubernetes.io/component"


def gateway_name(fleet: str) -> str:
    """Of the gateway's objects in a cluster."""
    return f"{fleet}-gateway"


def gateway_labels(fleet: str) -> dict[str, str]:
    """Of a fleet's gateways and nobody else's, however many fleets a namespace has."""
    return {"app.kubernetes.io/name": "prime-inference", COMPONENT: "gateway", FLEET: fleet}


def controller_labels(fleet: str) -> dict[str, str]:
    """What a controller's pod has to have to ask frontends how busy they are."""
    return gateway_labels(fleet) | {COMPONENT: "controller"}


def metadata(name: str, namespace: str, labels: dict[str, str]) -> Document:
    """Of any object; without the key where it has no labels."""
    named: Document = {"name": name, "namespace": namespace}
    return named | {"labels": labels} if labels else named


def verbatim(arguments: Iterable[str]) -> list[str]:
    """As a container's, which a kubelet would otherwise put variables' values into."""
    return [one.replace("$(", "$$(") for one in arguments]


def deployment_object(
    name: str, namespace: str, labels: dict[str, str], replicas: int, pod: Document
) -> Document:
    """Kubernetes' Deployment, which keeps `replicas` of a pod; not one of ours."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(name, namespace, labels),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def service(name: str, namespace: str, labels: dict[str, str], ports: dict[str, int]) -> Document:
    """Where the pods that have these labels answer, by the ports' names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, namespace, labels),
        "spec": {
            "selector": labels,
            "ports": [
                {"name": port, "port": number, "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }
