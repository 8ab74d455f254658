"""A deployment as commands to type, one block for each node, for bare metal.

`HOST_n` stands for the n-th host; everything else is final.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from prime_inference.fleet.arguments import (
    DATA_PARALLEL_PORT,
    FRONTEND_PORT,
    KV_EVENTS_PORT,
    SIDE_CHANNEL_PORT,
    SYSTEM_PORT,
    NodeRank,
    WorkerPorts,
    as_json,
    frontend_arguments,
    mooncake_config,
    nodes_of,
    worker_arguments,
    worker_environment,
    worker_module,
)
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.spec import PoolSpec

MOONCAKE_PORT = 50_051  # Mooncake's own default

DISCOVERY = {
    "DYN_DISCOVERY_BACKEND": "etcd",
    "ETCD_ENDPOINTS": "http://HOST_0:2379",
    "DYN_REQUEST_PLANE": "tcp",
    "DYN_EVENT_PLANE": "zmq",
}

OPEN = (
    "# WARNING: nothing below asks who is there, and all of it listens on every address.",
    f"# HOST_0: etcd 2379 (who writes there adds workers), the frontend {FRONTEND_PORT}, the"
    f" Mooncake master {MOONCAKE_PORT}",
    f"# workers: health and metrics {SYSTEM_PORT}, KV events {KV_EVENTS_PORT} and up, NIXL"
    f" {SIDE_CHANNEL_PORT} and up, ranks {DATA_PARALLEL_PORT},",
    "# and ports that Dynamo, NIXL and Mooncake take as they come.",
    "# Close all of them to whoever is none of these hosts; gateways need the frontend only.",
)


def commands(deployment: PlannedDeployment) -> Iterator[str]:
    """Lines of a shell script with comments; hosts are numbered from 0."""
    spec = deployment.spec
    environment = DISCOVERY | {"DYN_NAMESPACE": deployment.id}
    yield f"# {deployment.id}: {spec.model.id!r} in {deployment.datacenter}, {spec.gpus} GPUs"
    yield from OPEN
    yield "# HOST_0: discovery, the frontend, and the second cache tier's master"
    etcd = "--listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://HOST_0:2379"
    yield f"etcd {etcd} &"
    frontend = frontend_arguments(spec, host="0.0.0.0", port=FRONTEND_PORT)  # noqa: S104  # a node's
    yield _command(environment, ["-m", "dynamo.frontend", *frontend])
    if spec.kv.host_tier is not None:
        master = spec.kv.host_tier.master or f"HOST_0:{MOONCAKE_PORT}"
        if not spec.kv.host_tier.master:
            yield f"mooncake_master --rpc_port={MOONCAKE_PORT} &"
        yield "# every host:"
        content = shlex.quote(as_json(mooncake_config(spec, master)))
        yield f"mkdir -p /etc/mooncake && printf %s {content} > /etc/mooncake/config.json"
    host = 1
    for role, pool in spec.topology.pools.items():
        for index in range(pool.replicas):
            yield f"# {role}-{index}: {pool.parallelism}"
            nodes = nodes_of(spec, pool)
            for node in range(nodes):
                yield f"# HOST_{host + node}"
                rank = NodeRank(node, f"HOST_{host}") if nodes > 1 else None
                yield _worker(deployment, role, pool, environment, rank, f"HOST_{host + node}")
            host += nodes


def _worker(
    deployment: PlannedDeployment,
    role: str,
    pool: PoolSpec,
    environment: Mapping[str, str],
    rank: NodeRank | None,
    host: str,
) -> str:
    spec = deployment.spec
    ports = WorkerPorts()
    arguments = worker_arguments(spec, role, pool, source=spec.model.source, ports=ports, rank=rank)
    told = {**environment, **worker_environment(spec, ports, host)}
    return _command(told, ["-m", worker_module(spec), *arguments])


def _command(environment: Mapping[str, str], argv: Sequence[str]) -> str:
    told = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"{told} python3 {shlex.join(argv)} &"
