"""A spec as command lines of Dynamo 1.6.1: what all three renderers have in common.

The tests of tests/dynamo give every one of them to Dynamo's own parsers.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.spec import PoolSpec, RouterSpec, Spec
from prime_inference.fleet.vllm_cpu import engine_arguments, memory_arguments

DATA_PARALLEL_PORT = 13_345  # ranks of one replica find each other here
KV_EVENTS_PORT = 5557  # vLLM's own default
SIDE_CHANNEL_PORT = 5600  # NIXL's handshake; each rank takes the next one
SYSTEM_PORT = 9090  # health and metrics of a worker, where Dynamo's operator probes it
FRONTEND_PORT = 8000
MOONCAKE_CONFIG = "/etc/mooncake/config.json"

NIXL_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
VLLM_KV_DTYPES = {"bf16": "auto", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla", "nvfp4": "nvfp4_ds_mla"}


@dataclass(frozen=True, slots=True)
class WorkerPorts:
    """Where one worker listens."""

    system: int = SYSTEM_PORT
    kv_events: int = KV_EVENTS_PORT
    bootstrap: int = SIDE_CHANNEL_PORT  # a prefill worker hands its KV on here


@dataclass(frozen=True, slots=True)
class NodeRank:
    """Which part of a replica that spans nodes runs here; `leader` is the first node's host."""

    node: int
    leader: str


def frontend_arguments(spec: Spec, *, host: str, port: int, frontends: int = 1) -> list[str]:
    """Of `python -m dynamo.frontend`; of several, each hears what the others have sent where."""
    router = spec.router
    result = [
        "--http-host", host,
        "--http-port", str(port),
        "--router-mode", router.mode,
        "--migration-limit", str(router.migration_limit),
    ]  # fmt: skip
    if router.mode == "kv":
        result += [
            "--kv-cache-block-size", str(spec.kv.block_tokens),
            *_changed(router, "overlap_credit", "--router-kv-overlap-score-credit"),
            *_changed(router, "host_hit_weight", "--router-host-cache-hit-weight"),
            *_changed(router, "temperature", "--router-temperature"),
        ]  # fmt: skip
        if spec.engine == "llama.cpp":
            result.append("--no-router-kv-events")  # it does not tell what it keeps
        if frontends > 1:
            result.append("--router-replica-sync")
    if router.session_affinity_seconds:
        result += ["--router-session-affinity-ttl-secs", str(router.session_affinity_seconds)]
    return result


def _changed(router: RouterSpec, field: str, flag: str) -> list[str]:
    """The flag where it says other than Dynamo's default: some are about to be renamed."""
    value = getattr(router, field)
    return [] if value == getattr(RouterSpec(), field) else [flag, str(value)]


def worker_module(spec: Spec) -> str:
    """What `python -m` runs as a worker."""
    return {
        "vllm": "dynamo.vllm",
        "mocker": "dynamo.mocker",
        "llama.cpp": "prime_inference.engines.dynamo",
    }[spec.engine]


def worker_arguments(
    spec: Spec,
    role: str,
    pool: PoolSpec,
    *,
    source: str,
    ports: WorkerPorts,
    rank: NodeRank | None = None,
) -> list[str]:
    """Of one worker (one node of it, with `rank`); `source` is the model's folder or name."""
    match spec.engine:
        case "vllm":
            return _vllm(spec, role, pool, source, ports, rank)
        case "mocker":
            return _mocker(spec, role, pool, source, ports)
        case "llama.cpp":
            return _local(spec, pool, source)


def worker_environment(spec: Spec, ports: WorkerPorts, host: str) -> dict[str, str]:
    """What a worker is told outside of its command line."""
    result = {"DYN_SYSTEM_PORT": str(ports.system)}
    if spec.engine != "vllm":
        return result
    result["VLLM_KV_CACHE_LAYOUT"] = spec.kv.layout.value
    if spec.kv.transfer == "nixl":
        result["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
        result["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(ports.bootstrap)
    if spec.kv.host_tier is not None:
        result["MOONCAKE_CONFIG_PATH"] = MOONCAKE_CONFIG
        # block hashes must be the same in every process that shares the store
        result["PYTHONHASHSEED"] = "0"
    if spec.kv.hopper_plugin:
        result["PRIME_NVFP4_KV"] = "1"
    return result


def mooncake_config(spec: Spec, master: str) -> dict[str, object]:
    """The file that MOONCAKE_CONFIG_PATH names: each rank lends the store its share."""
    assert spec.kv.host_tier is not None
    return {
        "mode": "embedded",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": master,
        "protocol": "rdma",
        "device_name": "",
        "global_segment_size": spec.kv.host_tier.gib_per_gpu << 30,
        "local_buffer_size": 4 << 30,
    }


def nodes_of(spec: Spec, pool: PoolSpec) -> int:
    """Nodes that one replica spans."""
    return max(1, pool.parallelism.gpus // GPUS[spec.hardware.gpu].per_node)


def _vllm(
    spec: Spec, role: str, pool: PoolSpec, source: str, ports: WorkerPorts, rank: NodeRank | None
) -> list[str]:
    parallel, gpu = pool.parallelism, GPUS[spec.hardware.gpu]
    result = [
        "--model", source,
        "--served-model-name", spec.model.id,
        "--max-model-len", str(spec.model.context_tokens),
        "--kv-cache-dtype", VLLM_KV_DTYPES[spec.kv.format],
        "--block-size", str(spec.kv.block_tokens),
        *memory_arguments(gpu, spec.kv.memory_fraction),
        "--max-num-batched-tokens", str(pool.tokens_per_step),
        "--max-num-seqs", str(pool.sequences),
        "--tensor-parallel-size", str(parallel.tensor),
        *engine_arguments(gpu),
    ]  # fmt: skip
    if parallel.data > 1:
        result += ["--data-parallel-size", str(parallel.data)]
    if parallel.experts_dealt_out:
        result.append("--enable-expert-parallel")
    if rank is not None:
        result += _rank_arguments(spec, pool, rank)
    if role != "aggregated":
        result += ["--disaggregation-mode", role]
    transfer = _transfer(spec, role)
    if transfer is not None:
        result += ["--kv-transfer-config", as_json(transfer)]
    events = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{ports.kv_events}",  # with a host vLLM would connect, not bind
        "topic": "",
    }
    if role != "decode":  # the router looks for prefixes where prompts are computed
        result += ["--kv-events-config", as_json(events)]
    return result + _tool_arguments(spec)


def _rank_arguments(spec: Spec, pool: PoolSpec, rank: NodeRank) -> list[str]:
    """Ranks of a replica that spans nodes: each node serves its own."""
    local = GPUS[spec.hardware.gpu].per_node
    if pool.parallelism.data == 1:
        nodes = nodes_of(spec, pool)
        return [
            "--nnodes", str(nodes),
            "--node-rank", str(rank.node),
            "--master-addr", rank.leader,
        ]  # fmt: skip
    return [
        "--data-parallel-hybrid-lb",
        "--data-parallel-size-local", str(local),
        "--data-parallel-start-rank", str(rank.node * local),
        "--data-parallel-address", rank.leader,
        "--data-parallel-rpc-port", str(DATA_PARALLEL_PORT),
    ]  # fmt: skip


def _transfer(spec: Spec, role: str) -> dict[str, object] | None:
    """NIXL between pools, Mooncake's store beneath, or both through one connector."""
    connectors: list[dict[str, object]] = []
    if spec.kv.transfer == "nixl":
        device = "cuda" if GPUS[spec.hardware.gpu].capability else "cpu"
        connectors.append(
            {
                "kv_connector": "NixlConnector",
                "kv_role": NIXL_ROLES[role],
                "kv_buffer_device": device,
            }
        )
    if spec.kv.host_tier is not None:
        connectors.append({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
    if len(connectors) < 2:
        return connectors[0] if connectors else None
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": connectors},
    }


def _tool_arguments(spec: Spec) -> list[str]:
    tools = spec.tools
    result: list[str] = []
    if tools.call_parser:
        result += ["--dyn-tool-call-parser", tools.call_parser]
    if tools.reasoning_parser:
        result += ["--dyn-reasoning-parser", tools.reasoning_parser]
    wanted = {"scope": "always", "schema": "auto"} if tools.structural_tags else False
    return [*result, "--dyn-structural-tag", as_json(wanted)]


def _mocker(spec: Spec, role: str, pool: PoolSpec, source: str, ports: WorkerPorts) -> list[str]:
    result = [
        "--model-path", source,
        "--model-name", spec.model.id,
        "--block-size", str(spec.kv.block_tokens),
        "--max-model-len", str(spec.model.context_tokens),
        "--max-num-batched-tokens", str(pool.tokens_per_step),
        "--max-num-seqs", str(pool.sequences),
        "--num-gpu-blocks-override", str(spec.mocker.gpu_blocks),
        "--speedup-ratio", str(spec.mocker.speedup),
    ]  # fmt: skip
    if spec.mocker.host_blocks:
        result += ["--num-host-blocks", str(spec.mocker.host_blocks)]
    if role != "aggregated":
        result += ["--disaggregation-mode", role]
    if role == "prefill":
        result += ["--bootstrap-ports", str(ports.bootstrap)]
    return result


def _local(spec: Spec, pool: PoolSpec, source: str) -> list[str]:
    return [
        "--model-path", source,
        "--model-name", spec.model.id,
        "--slots", str(pool.sequences),
        "--context-tokens", str(spec.model.context_tokens),
        "--block-size", str(spec.kv.block_tokens),
    ]  # fmt: skip


def as_json(value: object) -> str:
    """A JSON argument of a command line, the same for the same value."""
    return msgspec.json.encode(value, order="sorted").decode()
