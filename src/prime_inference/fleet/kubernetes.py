"""A datacenter as Kubernetes objects: Dynamo's graphs, our gateway, and who may talk to whom.

The graph is a DynamoGraphDeployment, nvidia.com/v1beta1 (Dynamo's operator, deploy/operator/api/
v1beta1). Documents are plain dictionaries; `kubectl apply -f` takes their JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prime_inference.fleet.arguments import (
    FRONTEND_PORT,
    KV_EVENTS_PORT,
    MOONCAKE_CONFIG,
    SYSTEM_PORT,
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
from prime_inference.fleet.fleet import Fleet, GatewayEntry, PlannedDeployment
from prime_inference.fleet.hardware import GPUS, Gpu
from prime_inference.fleet.ready import ReadyDeployment, reachable_from, ready_document
from prime_inference.fleet.spec import PoolSpec, Spec

Document = dict[str, Any]

API = "nvidia.com/v1beta1"
GRAPH = "DynamoGraphDeployment"
LABEL = "inference.prime/deployment"
FLEET = "inference.prime/fleet"
MANAGED = "inference.prime/managed-by"  # on what a controller keeps
COMPONENT = "app.kubernetes.io/component"
MOONCAKE = "mooncake-master"
NAMESPACE_NAME = "kubernetes.io/metadata.name"  # the API server labels every namespace with it
GPU_PRODUCT = "nvidia.com/gpu.product"
GATEWAY_PORT = 8000
CONTROL_PORT = 8001
FRONTENDS = 2  # of a graph: one may be replaced while the other serves
GRACE_SECONDS = 60  # Dynamo's drain takes 30 at most
GATEWAY_DRAIN_SECONDS = 600  # a rolling restart cuts what takes longer; nobody waits for less
GATEWAY_GRACE_SECONDS = GATEWAY_DRAIN_SECONDS + 15  # what is broken off then is told so in 6
SHARED_STATE = ("PRIME_REDIS_URL", "PRIME_DATABASE")
"""Keys of the gateways' Secret, and what `fleet gateway` reads them from."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where deployments of a fleet are in a cluster; pods of the namespace `monitoring` may read
    their metrics (empty: none)."""

    fleet: str
    namespace: str = "default"
    monitoring: str = ""


def gateway_labels(fleet: str) -> dict[str, str]:
    """Of a fleet's gateways and nobody else's, however many fleets a namespace has."""
    return {"app.kubernetes.io/name": "prime-inference", COMPONENT: "gateway", FLEET: fleet}


def controller_labels(fleet: str) -> dict[str, str]:
    """What a controller's pod has to have to ask frontends how busy they are."""
    return gateway_labels(fleet) | {COMPONENT: "controller"}


def documents(fleet: Fleet, datacenter: str, namespace: str = "default") -> list[Document]:
    """Everything that one datacenter's cluster runs. Raises FleetRefused."""
    here = [one for one in fleet.deployments if one.datacenter == datacenter]
    if not here:
        raise FleetRefused(f"{fleet.name} has no deployment in {datacenter!r}.")
    cluster = next(one.kubernetes for one in fleet.datacenters if one.id == datacenter)
    place = Place(fleet.name, namespace, cluster.monitoring if cluster is not None else "")
    result: list[Document] = []
    for one in here:
        result += deployment_documents(one, place)
    if fleet.gateway.enabled:
        result += _gateway(fleet, datacenter, namespace)
    return result


def deployment_documents(deployment: PlannedDeployment, place: Place) -> list[Document]:
    """Who may talk to the graph, its second cache tier, and last the graph: no engine is there
    before its policies are. Raises FleetRefused."""
    _require_for_clusters(deployment)
    return [
        *_policies(deployment, place),
        *_host_tier(deployment, place.namespace),
        graph(deployment, place.namespace),
    ]


def graph(deployment: PlannedDeployment, namespace: str) -> Document:
    """The DynamoGraphDeployment. Raises FleetRefused for GPUs whose nodes are not known."""
    spec = deployment.spec
    components = [_frontend(deployment)]
    components += [_pool(deployment, role, pool) for role, pool in spec.topology.pools.items()]
    return {
        "apiVersion": API,
        "kind": GRAPH,
        "metadata": _metadata(deployment.id, namespace, {LABEL: deployment.id}),
        "spec": {"backendFramework": "vllm", "components": components},
    }


def _require_for_clusters(deployment: PlannedDeployment) -> None:
    """Raises FleetRefused."""
    for reason in _only_here(deployment.spec):
        raise FleetRefused(f"{deployment.id}: {reason}")


def _only_here(spec: Spec) -> Iterator[str]:
    """Why a spec is for this machine only."""
    if spec.engine == "llama.cpp":
        yield "the local engine runs on one machine only."
    elif spec.engine != "vllm":
        yield f"the engine {spec.engine!r} plays one; the operator's graphs are of vLLM."
    source = spec.model.source
    if source == "bytes" or source.startswith("."):
        yield (
            f"model.source {source!r} is a folder of this machine; in a cluster it is a repository,"
            " or a path in the image."
        )


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
        "metadata": _metadata(gateway_name(fleet), namespace, gateway_labels(fleet)),
        "data": {"deployments.json": ready_document(ready, down).decode()},
    }


def gateway_name(fleet: str) -> str:
    """Of the gateway's objects in a cluster."""
    return f"{fleet}-gateway"


# -- the graph


def _frontend(deployment: PlannedDeployment) -> Document:
    arguments = frontend_arguments(
        deployment.spec,
        host="0.0.0.0",  # noqa: S104  # a pod's
        port=FRONTEND_PORT,
        frontends=FRONTENDS,
    )
    container = {
        "name": "main",
        "image": deployment.spec.image,
        "command": ["python3", "-m", "dynamo.frontend"],
        "args": arguments,
        "ports": [{"containerPort": FRONTEND_PORT, "name": "http"}],
        "resources": {"requests": {"cpu": "4", "memory": "8Gi"}},
    }
    template = _template(deployment, "frontend", container)
    return {
        "name": "frontend",
        "type": "frontend",
        "replicas": FRONTENDS,
        "podTemplate": template,
    }


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
        template["spec"]["affinity"] = {"nodeAffinity": _nodes_with(gpu)}
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


def _nodes_with(gpu: Gpu) -> Document:
    """Raises FleetRefused."""
    if not gpu.products:
        raise FleetRefused(f"It is not known what label nodes with a {gpu.name} have.")
    label = {"key": GPU_PRODUCT, "operator": "In", "values": list(gpu.products)}
    terms = [{"matchExpressions": [label]}]
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}


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
    labels = {LABEL: deployment.id, COMPONENT: MOONCAKE}
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


def _policies(deployment: PlannedDeployment, place: Place) -> list[Document]:
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
        "metadata": _metadata(name, namespace, selector["matchLabels"]),
        "spec": {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": ingress},
    }


# -- the gateway


def _gateway(fleet: Fleet, datacenter: str, namespace: str) -> list[Document]:
    name, labels = gateway_name(fleet.name), gateway_labels(fleet.name)
    entry = fleet.gateway
    _require_shared_state(entry)
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
        _deployment(name, namespace, labels, entry.replicas, pod),
        _service(name, namespace, labels, {"api": GATEWAY_PORT}),
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(name, namespace, labels),
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
        },
        {
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": _metadata(name, namespace, labels),
            "spec": {
                "scaleTargetRef": target,
                "minReplicas": entry.replicas,
                "maxReplicas": entry.max_replicas,
                "metrics": [{"type": "Resource", "resource": cpu}],
            },
        },
    ]


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
