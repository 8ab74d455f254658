"""A deployment as child processes of one machine: everything on loopback.

Discovery is a folder and events go over ZeroMQ, so neither etcd nor NATS is needed.
Dynamo 1.6.1 binds some ZeroMQ and bootstrap sockets to every address whatever it is told;
the variables below are those that it honours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from prime_inference.fleet.arguments import (
    WorkerPorts,
    frontend_arguments,
    worker_arguments,
    worker_environment,
    worker_module,
)
from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.spec import Spec
from prime_inference.fleet.vllm_cpu import LOCAL_ENVIRONMENT

LOOPBACK = "127.0.0.1"


class Process(Struct, frozen=True):
    """One child process; `argv` follows the interpreter's name."""

    name: str  # unique in the deployment: frontend, prefill-0, decode-1
    role: str  # frontend, prefill, decode, aggregated
    argv: tuple[str, ...]
    environment: dict[str, str]
    port: int  # the frontend's API; a worker's health and metrics
    other_ports: tuple[int, ...] = ()  # that were given out to it


def runtime_environment(discovery: Path) -> dict[str, str]:
    """How Dynamo's processes of one deployment find each other."""
    return {
        "DYN_DISCOVERY_BACKEND": "file",  # unset, every process waits 120 s for etcd
        "DYN_FILE_KV": str(discovery),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": LOOPBACK,
        "DYN_TCP_RESPONSE_STREAM_HOST": LOOPBACK,
        "DYN_EVENT_PLANE_HOST": LOOPBACK,
        "DYN_SYSTEM_HOST": LOOPBACK,
        "DYN_LOG": "warn",  # at info the router writes a line for each request
        "HF_HUB_OFFLINE": "1",  # models are folders here; nothing is fetched
        "TRANSFORMERS_OFFLINE": "1",
    }


def frontend_process(spec: Spec, discovery: Path, port: int) -> Process:
    """The one process of a deployment that the gateway talks to."""
    return Process(
        name="frontend",
        role="frontend",
        argv=("-m", "dynamo.frontend", *frontend_arguments(spec, host=LOOPBACK, port=port)),
        environment=runtime_environment(discovery),
        port=port,
    )


def worker_process(
    spec: Spec, role: str, index: int, *, source: str, discovery: Path, free_port: Callable[[], int]
) -> Process:
    """Worker `index` of a pool."""
    pool = spec.topology.pools[role]
    ports = WorkerPorts(system=free_port(), kv_events=free_port(), bootstrap=free_port())
    return Process(
        name=f"{role}-{index}",
        role=role,
        argv=(
            "-m",
            worker_module(spec),
            *worker_arguments(spec, role, pool, source=source, ports=ports),
        ),
        environment=runtime_environment(discovery)
        | worker_environment(spec, ports, LOOPBACK)
        | _cpu_environment(spec),
        port=ports.system,
        other_ports=(ports.kv_events, ports.bootstrap),
    )


def _cpu_environment(spec: Spec) -> dict[str, str]:
    """What vLLM's CPU build is told where workers share a machine."""
    on_cpu = spec.engine == "vllm" and not GPUS[spec.hardware.gpu].capability
    return dict(LOCAL_ENVIRONMENT) if on_cpu else {}


def processes(
    spec: Spec, *, source: str, discovery: Path, free_port: Callable[[], int]
) -> list[Process]:
    """All processes of a deployment: the frontend, then the pools."""
    result = [frontend_process(spec, discovery, free_port())]
    for role, pool in spec.topology.pools.items():
        result += [
            worker_process(
                spec, role, index, source=source, discovery=discovery, free_port=free_port
            )
            for index in range(pool.replicas)
        ]
    return result
