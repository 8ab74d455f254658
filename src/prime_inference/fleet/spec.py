"""What a deployment is: model, hardware, topology, cache, router, tools, limits.

A spec says what is wanted and nothing of where it runs: the renderers (`local`,
`kubernetes`, `commands`) turn it into processes. Every table of the file is a class below,
every key a field (docs/datacenter.md has them in one table).
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from prime_inference.domain.fleet import MOST_COUNT, MOST_SLOTS
from prime_inference.fleet.formats import KvFormat, WeightFormat
from prime_inference.fleet.parallelism import Parallelism
from prime_inference.kvcache.layout import Layout

Whole = Annotated[int, Meta(ge=-MOST_COUNT, le=MOST_COUNT)]  # `check` says what is too few

EngineKind = Literal["vllm", "mocker", "llama.cpp"]
Transfer = Literal["none", "nixl"]
RouterMode = Literal["kv", "round-robin", "random", "least-loaded"]


class _Table(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table of a spec's file: a key that is not a field is an error."""


class ModelSpec(_Table, frozen=True, kw_only=True):
    id: str
    revision: str
    architecture: str  # a model of the catalogue, or the path of a config.json
    source: str  # what the engine loads: a repository or a folder
    context_tokens: Whole
    routed_weights: WeightFormat = "bf16"
    other_weights: WeightFormat = "bf16"


class HardwareSpec(_Table, frozen=True, kw_only=True):
    gpu: str
    gpus: Whole = 1


class PoolSpec(_Table, frozen=True, kw_only=True):
    """Equal workers. Under DEP `tokens_per_step` and `sequences` are of each GPU."""

    replicas: Whole = 1
    parallel: str = "TP1"
    tokens_per_step: Whole = 8192  # vLLM's own default for servers
    sequences: Whole = 256  # vLLM's own default

    @property
    def parallelism(self) -> Parallelism:
        """Raises ValueError."""
        return Parallelism.parse(self.parallel)


class TopologySpec(_Table, frozen=True, kw_only=True):
    """Either `workers` that do both, or a pool that prefills and one that decodes."""

    workers: PoolSpec | None = None
    prefill: PoolSpec | None = None
    decode: PoolSpec | None = None

    @property
    def disaggregated(self) -> bool:
        return self.workers is None

    @property
    def pools(self) -> dict[str, PoolSpec]:
        """Pools by role: aggregated, prefill, decode."""
        roles = {"aggregated": self.workers, "prefill": self.prefill, "decode": self.decode}
        return {role: pool for role, pool in roles.items() if pool is not None}


class HostTierSpec(_Table, frozen=True, kw_only=True):
    """A second tier of the cache in host memory, kept by a Mooncake store."""

    gib_per_gpu: Whole
    master: str = ""  # host:port of the Mooncake master; empty where the renderer starts one


class KvSpec(_Table, frozen=True, kw_only=True):
    format: KvFormat = "bf16"
    layout: Layout = Layout.LBHNC
    block_tokens: Whole = 64  # FlashMLA's and DeepGEMM's page
    memory_fraction: float = 0.9  # of a GPU, weights and all; vLLM's own default
    transfer: Transfer = "none"
    hopper_plugin: bool = False  # our NVFP4 rows on sm_90 (docs/kv-nvfp4.md)
    host_tier: HostTierSpec | None = None


class RouterSpec(_Table, frozen=True, kw_only=True):
    """Dynamo's router. The numbers are its own defaults but for affinity and migration."""

    mode: RouterMode = "kv"
    overlap_credit: float = 1.0  # what a cached block is worth against one to compute
    host_hit_weight: float = 0.75  # a block in host memory, of one on the GPU
    temperature: float = 0.0
    session_affinity_seconds: Whole = 300  # longer pauses lose little: cached blocks still count
    migration_limit: Whole = 3  # with Dynamo's 0 a dead worker ends the answers it was writing


class ToolSpec(_Table, frozen=True, kw_only=True):
    call_parser: str = ""
    reasoning_parser: str = ""
    structural_tags: bool = False


class LimitSpec(_Table, frozen=True, kw_only=True):
    slots: Annotated[
        int, Meta(le=MOST_SLOTS)
    ]  # requests the deployment works on at a time; the gateway refuses more
    max_output_tokens: Whole | None = None  # None: what the context leaves


class MockerSpec(_Table, frozen=True, kw_only=True):
    """How Dynamo's mocker plays an engine."""

    speedup: float = 1.0
    gpu_blocks: Whole = 16_384  # Dynamo's own default, of each worker
    host_blocks: Whole = 0


class SloSpec(_Table, frozen=True, kw_only=True):
    """What the plan is judged by: p90 targets and the agents' turns that they hold for."""

    first_token_ms: float = 2000.0
    inter_token_ms: float = 40.0
    history_tokens: Whole = 140_000  # agents' prompts, mostly cached (docs/agent-benchmark.md)
    turn_tokens: Whole = 6_000  # what a turn adds to them


class Spec(_Table, frozen=True, kw_only=True):
    """One deployment, as wanted. `check.require` says whether it can be."""

    name: str
    engine: EngineKind
    model: ModelSpec
    hardware: HardwareSpec
    topology: TopologySpec
    limits: LimitSpec
    kv: KvSpec = KvSpec()
    router: RouterSpec = RouterSpec()
    tools: ToolSpec = ToolSpec()
    mocker: MockerSpec = MockerSpec()
    slo: SloSpec = SloSpec()
    image: str = "nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.6.1"

    @property
    def gpus(self) -> int:
        """GPUs of all pools. Raises ValueError."""
        return sum(pool.replicas * pool.parallelism.gpus for pool in self.topology.pools.values())
