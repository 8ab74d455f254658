"""A datacenter as Kubernetes objects: Dynamo's graphs, our gateway, and who may talk to whom.

The graph is a DynamoGraphDeployment, nvidia.com/v1beta1 (Dynamo's operator, deploy/operator/api/
v1beta1). Documents are plain dictionaries; `kubectl apply -f` takes their JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from prime_inference.fleet.arguments import (
    FRONTEND_PORT,
    KV_EVENTS_PORT,
    MOONCAKE_CONFIG,
    WorkerPorts,
    as_json,
    frontend_arguments,
    mooncake_config,
    nodes_of,
    worker_arguments,
    worker_environment,
    worker_module,
)
from prime_inference.fleet.commands import MOONCAKE_PORT
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import Fleet, PlannedDeployment
from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.ready import ReadyDeployment, reachable_from, ready_document
from prime_inference.fleet.spec import PoolSpec

Document = dict[str, Any]

API = "nvidia.com/v1beta1"
LABEL = "inference.prime/deployment"
COMPONENT = "app.kubernetes.io/component"
GATEWAY = {"app.kubernetes.io/name": "prime-inference", COMPONENT: "gateway"}
CONTROLLER = {"app.kubernetes.io/name": "prime-inference", COMPONENT: "controller"}
"""What a controller's pod has to have to ask frontends how busy they are."""
GATEWAY_PORT = 8000
CONTROL_PORT = 8001
GRACE_SECONDS = 60  # Dynamo's drain takes 30 at most
GATEWAY_DRAIN_SECONDS = 600  # a rolling restart cuts what takes longer; nobody waits for less
GATEWAY_GRACE_SECONDS = GATEWAY_DRAIN_SECONDS + 15  # what is broken off then is told so in 6


def documents(fleet: Fleet, datacenter: str, namespace: str = "default") -> list[Document]:
    """Everything that one datacenter's cluster runs. Raises FleetRefused."""
    here = [one for one in fleet.deployments if one.datacenter == datacenter]
    if not here:
        raise FleetRefused(f"{fleet.name} has no deployment in {datacenter!r}.")
    result: list[Document] = []
    for one in here:
        result += deployment_documents(one, namespace)
    if fleet.gateway.enabled:
        result += _gateway(fleet, datacenter, namespace)
    return result


def deployment_documents(deployment: PlannedDeployment, namespace: str) -> list[Document]:
    """The graph, who may talk to it, and its second cache tier. Raises FleetRefused."""
    return [
        graph(deployment, namespace),
        *_policies(deployment, namespace),
        *_host_tier(deployment, namespace),
    ]


def graph(deployment: PlannedDeployment, namespace: str) -> Document:
    """The DynamoGraphDeployment. Raises FleetRefused for an engine that is not for clusters."""
    spec = deployment.spec
    if spec.engine == "llama.cpp":
        raise FleetRefused(f"{deployment.id}: the local engine runs on one machine only.")
    components = [_frontend(deployment)]
    components += [_pool(deployment, role, pool) for role, pool in spec.topology.pools.items()]
    return {
        "apiVersion": API,
        "kind": "DynamoGraphDeployment",
        "metadata": _metadata(deployment.id, namespace, {LABEL: deployment.id}),
        "spec": {"backendFramework": "vllm", "components": components},
    }


def frontend_url(name: str, namespace: str) -> str:
    """Where the operator's service for a graph's frontend answers inside of the cluster."""
    return f"http://{name}-frontend.{namespace}.svc:{FRONTEND_PORT}/v1"


def gateway_list(
    fleet: str, namespace: str, ready: Sequence[ReadyDeployment], down: Collection[str] = ()
) -> Document:
    """The ConfigMap that a cluster's gateways follow."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(gateway_name(fleet), namespace, GATEWAY),
        "data": {"deployments.json": ready_document(ready, down).decode()},
    }


def gateway_name(fleet: str) -> str:
    """Of the gateway's objects in a cluster."""
    return f"{fleet}-gateway"


# -- the graph


def _frontend(deployment: PlannedDeployment) -> Document:
    arguments = frontend_arguments(deployment.spec, host="0.0.0.0", port=FRONTEND_PORT)  # noqa: S104  # a pod's
    container = {
        "name": "main",
        "image": deployment.spec.image,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": arguments,
        "ports": [{"containerPort": FRONTEND_PORT, "name": "http"}],
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
    }
    template = _template(deployment, "frontend", container)
    return {"name": "frontend", "type": "frontend", "replicas": 2, "podTemplate": template}


def _pool(deployment: PlannedDeployment, role: str, pool: PoolSpec) -> Document:
    spec = deployment.spec
    gpu = GPUS[spec.hardware.gpu]
    ports = WorkerPorts()
    environment = worker_environment(spec, ports, "$(POD_IP)")
    del environment["DYN_SYSTEM_PORT"]  # the operator sets it beside its probes
    gpus = str(min(pool.parallelism.gpus, gpu.per_node))
    container: Document = {
        "name": "main",
        "image": spec.image,
        "command": ["python3", "-m", worker_module(spec)],
        "args": worker_arguments(spec, role, pool, source=spec.model.source, ports=ports),
        "env": [_pod_ip(), *({"name": key, "value": environment[key]} for key in environment)],
        "ports": [{"containerPort": KV_EVENTS_PORT, "name": "kv-events"}],
    }
    template = _template(deployment, role, container)
    if gpu.capability:
        container["resources"] = {
            "limits": {"nvidia.com/gpu": gpus},
            "requests": {"nvidia.com/gpu": gpus},
        }
        template["spec"]["nodeSelector"] = {"nvidia.com/gpu.product": gpu.product}
    if spec.kv.host_tier is not None:
        _mount_mooncake(deployment, template, container)
    component: Document = {
        "name": role if role != "aggregated" else "worker",
        "type": role if role != "aggregated" else "worker",
        "replicas": pool.replicas,
        "sharedMemorySize": "64Gi",  # NCCL's and vLLM's message queues
        "podTemplate": template,
    }
    nodes = nodes_of(spec, pool)
    if nodes > 1:
        component["multinode"] = {"nodeCount": nodes}  # the operator adds ranks and addresses
    return component


def _template(deployment: PlannedDeployment, role: str, container: Document) -> Document:
    return {
        "metadata": {"labels": {LABEL: deployment.id, COMPONENT: role}},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": GRACE_SECONDS},
    }


def _pod_ip() -> Document:
    return {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


# -- the second cache tier


def _host_tier(deployment: PlannedDeployment, namespace: str) -> list[Document]:
    tier = deployment.spec.kv.host_tier
    if tier is None:
        return []
    name = f"{deployment.id}-mooncake"
    master = tier.master or f"{name}.{namespace}.svc:{MOONCAKE_PORT}"
    config: Document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(name, namespace, {LABEL: deployment.id}),
        "data": {"config.json": as_json(mooncake_config(deployment.spec, master))},
    }
    if tier.master:
        return [config]
    labels = {LABEL: deployment.id, COMPONENT: "mooncake-master"}
    container = {
        "name": "master",
        "image": deployment.spec.image,
        "command": ["mooncake_master", f"--rpc_port={MOONCAKE_PORT}"],
        "ports": [{"containerPort": MOONCAKE_PORT}],
    }
    return [
        config,
        _deployment(name, namespace, labels, 1, {"containers": [container]}),
        _service(name, namespace, labels, {"rpc": MOONCAKE_PORT}),
    ]


def _mount_mooncake(deployment: PlannedDeployment, template: Document, container: Document) -> None:
    name = f"{deployment.id}-mooncake"
    template["spec"]["volumes"] = [{"name": "mooncake", "configMap": {"name": name}}]
    folder = MOONCAKE_CONFIG.rsplit("/", 1)[0]
    container["volumeMounts"] = [{"name": "mooncake", "mountPath": folder, "readOnly": True}]


# -- who may talk to whom


def _policies(deployment: PlannedDeployment, namespace: str) -> list[Document]:
    """Engines hear their own graph only, frontends also gateways and the controller: engines
    check no key."""
    mine = {"matchLabels": {LABEL: deployment.id}}
    frontends = {"matchLabels": {LABEL: deployment.id, COMPONENT: "frontend"}}
    callers = [{"podSelector": {"matchLabels": one}} for one in (GATEWAY, CONTROLLER)]
    return [
        _policy(f"{deployment.id}-engines", namespace, mine, [{"from": [{"podSelector": mine}]}]),
        _policy(
            f"{deployment.id}-frontend",
            namespace,
            frontends,
            [{"from": callers, "ports": [{"protocol": "TCP", "port": FRONTEND_PORT}]}],
        ),
    ]


def _policy(name: str, namespace: str, selector: Document, ingress: list[Document]) -> Document:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(name, namespace, selector["matchLabels"]),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }


# -- the gateway


def _gateway(fleet: Fleet, datacenter: str, namespace: str) -> list[Document]:
    name = gateway_name(fleet.name)
    entry = fleet.gateway
    ready = [ReadyDeployment.of(one, frontend_url(one.id, namespace)) for one in fleet.deployments]
    config = gateway_list(
        fleet.name, namespace, reachable_from(datacenter, ready, fleet.datacenters)
    )
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
            "--drain-seconds", str(GATEWAY_DRAIN_SECONDS),
        ],
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
    pod = {
        "containers": [container],
        "terminationGracePeriodSeconds": GATEWAY_GRACE_SECONDS,
        "volumes": [
            {"name": "deployments", "configMap": {"name": name}},
            {"name": "state", "emptyDir": {}},
        ],
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    cpu = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}
    return [
        config,
        _deployment(name, namespace, GATEWAY, entry.replicas, pod),
        _service(name, namespace, GATEWAY, {"api": GATEWAY_PORT}),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(name, namespace, GATEWAY),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": GATEWAY}},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": _metadata(name, namespace, GATEWAY),
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": entry.replicas,
                "maxReplicas": entry.max_replicas,
                "metrics": [{"type": "Resource", "resource": cpu}],
            },
        },
    ]


def _deployment(
    name: str, namespace: str, labels: dict[str, str], replicas: int, pod: Document
) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(name, namespace, labels),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _service(name: str, namespace: str, labels: dict[str, str], ports: dict[str, int]) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, namespace, labels),
        "spec": {
            "selector": labels,
            "ports": [
                {"name": port, "port": number, "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }


def _metadata(name: str, namespace: str, labels: dict[str, str]) -> Document:
    metadata: Document = {"name": name, "namespace": namespace}
    return metadata | {"labels": labels} if labels else metadata
