"""A deployment as Dynamo's graph: a frontend and pools of workers.

The graph is a DynamoGraphDeployment, nvidia.com/v1beta1 (Dynamo's operator, deploy/operator/api/
v1beta1).
"""

from __future__ import annotations

from prime_inference.fleet.arguments import (
    FRONTEND_PORT,
    KV_EVENTS_PORT,
    WorkerPorts,
    frontend_arguments,
    nodes_of,
    worker_arguments,
    worker_environment,
    worker_module,
)
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.hardware import GPUS, Gpu
from prime_inference.fleet.kubernetes.host_tier import mount_host_tier
from prime_inference.fleet.kubernetes.objects import (
    COMPONENT,
    LABEL,
    Document,
    metadata,
    verbatim,
)
from prime_inference.fleet.spec import PoolSpec

API = "nvidia.com/v1beta1"
GRAPH = "DynamoGraphDeployment"
GPU_PRODUCT = "nvidia.com/gpu.product"
FRONTENDS = 2  # of a graph: one may be replaced while the other serves
GRACE_SECONDS = 60  # Dynamo's drain takes 30 at most


def graph(deployment: PlannedDeployment, namespace: str) -> Document:
    """The DynamoGraphDeployment. Raises FleetRefused for GPUs whose nodes are not known."""
    spec = deployment.spec
    components = [_frontend(deployment)]
    components += [_pool(deployment, role, pool) for role, pool in spec.topology.pools.items()]
    return {
        "apiVersion": API,
        "kind": GRAPH,
        "metadata": metadata(deployment.id, namespace, {LABEL: deployment.id}),
        "spec": {"backendFramework": "vllm", "components": components},
    }


def frontend_url(name: str, namespace: str) -> str:
    """Where the operator's service for a graph's frontend answers inside of the cluster."""
    return f"http://{name}-frontend.{namespace}.svc:{FRONTEND_PORT}/v1"


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
        "args": verbatim(arguments),
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
        "args": verbatim(worker_arguments(spec, role, pool, source=spec.model.source, ports=ports)),
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
        mount_host_tier(deployment, template, container)
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
