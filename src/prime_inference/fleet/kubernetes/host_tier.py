"""The second cache tier of a graph in a cluster: Mooncake's master, and what engines read of it."""

from __future__ import annotations

from prime_inference.fleet.arguments import MOONCAKE_CONFIG, as_json, mooncake_config
from prime_inference.fleet.commands import MOONCAKE_PORT
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.kubernetes.objects import (
    COMPONENT,
    LABEL,
    Document,
    deployment_object,
    metadata,
    service,
)

MOONCAKE = "mooncake-master"


def host_tier(deployment: PlannedDeployment, namespace: str) -> list[Document]:
    """What engines read, and a master unless the spec names one; nothing without the tier."""
    tier = deployment.spec.kv.host_tier
    if tier is None:
        return []
    name = f"{deployment.id}-mooncake"
    master = tier.master or f"{name}.{namespace}.svc:{MOONCAKE_PORT}"
    config: Document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(name, namespace, {LABEL: deployment.id}),
        "data": {"config.json": as_json(mooncake_config(deployment.spec, master))},
    }
    if tier.master:
        return [config]
    labels = {LABEL: deployment.id, COMPONENT: MOONCAKE}
    container = {
        "name": "master",
        "image": deployment.spec.image,
        "command": ["mooncake_master", f"--rpc_port={MOONCAKE_PORT}"],
        "ports": [{"containerPort": MOONCAKE_PORT}],
    }
    return [
        config,
        deployment_object(name, namespace, labels, 1, {"containers": [container]}),
        service(name, namespace, labels, {"rpc": MOONCAKE_PORT}),
    ]


def mount_host_tier(deployment: PlannedDeployment, template: Document, container: Document) -> None:
    """Put what engines read into a worker's pod."""
    name = f"{deployment.id}-mooncake"
    template["spec"]["volumes"] = [{"name": "mooncake", "configMap": {"name": name}}]
    folder = MOONCAKE_CONFIG.rsplit("/", 1)[0]
    container["volumeMounts"] = [{"name": "mooncake", "mountPath": folder, "readOnly": True}]
