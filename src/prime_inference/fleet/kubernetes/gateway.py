"""The fleet's gateway in a cluster: its pods, how many, and the list that they follow."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import Fleet, GatewayEntry
from prime_inference.fleet.kubernetes.graph import frontend_url
from prime_inference.fleet.kubernetes.objects import (
    Document,
    deployment_object,
    gateway_labels,
    gateway_name,
    metadata,
    service,
)
from prime_inference.fleet.ready import ReadyDeployment, reachable_from, ready_document

GATEWAY_PORT = 8000
CONTROL_PORT = 8001
GATEWAY_DRAIN_SECONDS = 600  # a rolling restart cuts what takes longer; nobody waits for less
GATEWAY_GRACE_SECONDS = GATEWAY_DRAIN_SECONDS + 15  # what is broken off then is told so in 6
SHARED_STATE = ("PRIME_REDIS_URL", "PRIME_DATABASE")
"""Keys of the gateways' Secret, and what `fleet gateway` reads them from."""


def gateway(fleet: Fleet, datacenter: str, namespace: str) -> list[Document]:
    """The list, the pods and who keeps how many of them. Raises FleetRefused."""
    entry = fleet.gateway
    _require_shared_state(entry)
    name, labels = gateway_name(fleet.name), gateway_labels(fleet.name)
    ready = [ReadyDeployment.of(one, frontend_url(one.id, namespace)) for one in fleet.deployments]
    reachable = reachable_from(datacenter, ready, fleet.datacenters)
    return [
        gateway_list(fleet.name, namespace, reachable),
        deployment_object(name, namespace, labels, entry.replicas, _pod(name, entry)),
        service(name, namespace, labels, {"api": GATEWAY_PORT}),
        _disruption_budget(name, namespace, labels),
        _autoscaler(name, namespace, labels, entry),
    ]


def gateway_list(
    fleet: str, namespace: str, ready: Sequence[ReadyDeployment], down: Collection[str] = ()
) -> Document:
    """The ConfigMap that a cluster's gateways follow."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(gateway_name(fleet), namespace, gateway_labels(fleet)),
        "data": {"deployments.json": ready_document(ready, down).decode()},
    }


def _pod(name: str, entry: GatewayEntry) -> Document:
    """One gateway, over the list that the ConfigMap `name` has."""
    container = {
        "name": "gateway",
        "image": entry.image,
        "command": ["prime", "inference", "fleet", "gateway"],
        "args": [
            "/etc/prime/deployments.json",
            "--host", "0.0.0.0",  # noqa: S104  # a pod's
            "--port", str(GATEWAY_PORT),
            "--control-port", str(CONTROL_PORT),
            "--state-dir", "/var/lib/prime",
            "--replicas", str(entry.max_replicas),
            "--drain-seconds", str(GATEWAY_DRAIN_SECONDS),
        ],
        "env": _shared_state(entry),
        "ports": [
            {"containerPort": GATEWAY_PORT, "name": "api"},
            {"containerPort": CONTROL_PORT, "name": "control"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": "control"}, "periodSeconds": 2},
        "livenessProbe": {"httpGet": {"path": "/live", "port": "control"}, "periodSeconds": 10},
        "resources": {"requests": {"cpu": "1", "memory": "512Mi"}},
        "volumeMounts": [
            {"name": "deployments", "mountPath": "/etc/prime", "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/prime"},
        ],
    }  # fmt: skip
    return {
        "containers": [container],
        "terminationGracePeriodSeconds": GATEWAY_GRACE_SECONDS,
        "volumes": [
            {"name": "deployments", "configMap": {"name": name}},
            {"name": "state", "emptyDir": {}},
        ],
    }


def _disruption_budget(name: str, namespace: str, labels: dict[str, str]) -> Document:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(name, namespace, labels),
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }


def _autoscaler(name: str, namespace: str, labels: dict[str, str], entry: GatewayEntry) -> Document:
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": metadata(name, namespace, labels),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": entry.replicas,
            "maxReplicas": entry.max_replicas,
            "metrics": [{"type": "Resource", "resource": cpu}],
        },
    }


def _require_shared_state(entry: GatewayEntry) -> None:
    """Raises FleetRefused."""
    if entry.max_replicas > 1 and not entry.secret:
        raise FleetRefused(
            f"gateway.max_replicas {entry.max_replicas}: gateways that share no state each give"
            " out keys of their own and all slots. Name a Secret with"
            f" {' and '.join(SHARED_STATE)} in gateway.secret, or have one replica."
        )


def _shared_state(entry: GatewayEntry) -> list[Document]:
    """A pod whose Secret lacks one of them does not start."""
    if not entry.secret:
        return []
    return [
        {"name": key, "valueFrom": {"secretKeyRef": {"name": entry.secret, "key": key}}}
        for key in SHARED_STATE
    ]
