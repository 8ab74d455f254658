"""Whether the parts of a spec go together. Pure; every reason is found, not just the first."""

from __future__ import annotations

from collections.abc import Iterator

from prime_inference.fleet import vllm_cpu
from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.errors import SpecImpossible
from prime_inference.fleet.formats import WEIGHT_BITS, row_bytes
from prime_inference.fleet.hardware import GIB, GPUS, Gpu
from prime_inference.fleet.memory import gpu_memory
from prime_inference.fleet.parallelism import Parallelism
from prime_inference.fleet.spec import PoolSpec, Spec
from prime_inference.kvcache.row import LATENT_DIMS, ROPE_DIMS

SPARSE_BLOCK_TOKENS = 64  # pages of FlashMLA and DeepGEMM; vLLM makes no block-major view of others
MAX_AFFINITY_SECONDS = 31_536_000  # Dynamo's own bound
MAX_COMPONENTS = 1000  # replicas of one pool: a typing error above

TOOL_PARSERS = frozenset({
    "deepseek_v3", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "gemma4", "glm45", "glm47",
    "harmony", "hermes", "jamba", "kimi_k2", "kimi_k25", "llama3_json", "minimax_m2", "mistral",
    "nemotron_deci", "nemotron_nano", "phi4", "pythonic", "qwen25", "qwen3", "qwen3_coder",
})  # fmt: skip
"""Dynamo 1.6.1's, as `dynamo.llm.get_tool_parser_names` has them (tests/dynamo checks)."""


def require(spec: Spec, model: Architecture) -> None:
    """Raises SpecImpossible with every reason."""
    reasons = list(reasons_against(spec, model))
    if reasons:
        raise SpecImpossible(spec.name, reasons)


def reasons_against(spec: Spec, model: Architecture) -> Iterator[str]:
    """Why the spec cannot work; empty when it can."""
    yield from _numbers(spec, model)
    yield from _topology(spec)
    yield from _router_and_tools(spec)
    gpu = GPUS.get(spec.hardware.gpu)
    if gpu is None:
        yield f"hardware.gpu {spec.hardware.gpu!r} is none of {', '.join(GPUS)}"
        return
    yield from _kv(spec, model, gpu)
    for role, pool in spec.topology.pools.items():
        try:
            parallel = pool.parallelism
        except ValueError as error:
            yield f"topology.{role}.parallel: {error}"
            continue
        where = f"topology.{role}: {parallel}"
        yield from (f"{where}: {reason}" for reason in _spread(model, gpu, parallel))
        yield from (f"{where}: {reason}" for reason in _fit(spec, model, gpu, pool, parallel))
    yield from _gpus(spec)


def _numbers(spec: Spec, model: Architecture) -> Iterator[str]:
    if not 1 <= spec.model.context_tokens <= model.context_tokens:
        yield (
            f"model.context_tokens {spec.model.context_tokens} is not within 1 and the"
            f" {model.context_tokens} that {model.name} was made for"
        )
    if spec.limits.slots < 1:
        yield f"limits.slots {spec.limits.slots} is below 1"
    if not 0.01 <= spec.kv.memory_fraction <= 0.98:
        yield f"kv.memory_fraction {spec.kv.memory_fraction} is not within 0.01 and 0.98"
    for role, pool in spec.topology.pools.items():
        if not 1 <= pool.replicas <= MAX_COMPONENTS:
            yield f"topology.{role}.replicas {pool.replicas} is not within 1 and {MAX_COMPONENTS}"
        if pool.sequences < 1:
            yield f"topology.{role}.sequences {pool.sequences} is below 1"
        if pool.tokens_per_step < spec.kv.block_tokens:
            yield (
                f"topology.{role}.tokens_per_step {pool.tokens_per_step} is less than a block of"
                f" {spec.kv.block_tokens} tokens"
            )


def _topology(spec: Spec) -> Iterator[str]:
    topology = spec.topology
    split = topology.prefill is not None and topology.decode is not None
    if len(topology.pools) != (2 if split else 1) or split == (topology.workers is not None):
        yield "topology: either `workers`, or both `prefill` and `decode`"
    if topology.disaggregated and spec.kv.transfer == "none" and spec.engine == "vllm":
        yield "kv.transfer 'none': decode workers would have no way to the prefilled KV"
    if not topology.disaggregated and spec.kv.transfer != "none":
        yield f"kv.transfer {spec.kv.transfer!r}: aggregated workers have nothing to transfer"
    if topology.disaggregated and spec.engine == "llama.cpp":
        yield "engine 'llama.cpp' cannot hand its KV on: it serves aggregated workers only"


def _router_and_tools(spec: Spec) -> Iterator[str]:
    router, tools = spec.router, spec.tools
    if not 0 <= router.session_affinity_seconds <= MAX_AFFINITY_SECONDS:
        yield f"router.session_affinity_seconds is not within 0 and {MAX_AFFINITY_SECONDS}"
    if not 0 <= router.host_hit_weight <= 1:
        yield "router.host_hit_weight is not within 0 and 1: no block is worth more than on the GPU"
    if router.temperature < 0 or router.migration_limit < 0 or router.overlap_credit < 0:
        yield "router: temperature, migration_limit and overlap_credit are 0 or more"
    if tools.call_parser and tools.call_parser not in TOOL_PARSERS:
        yield f"tools.call_parser {tools.call_parser!r} is not one of Dynamo's"
    if tools.structural_tags and not tools.call_parser:
        yield "tools.structural_tags needs tools.call_parser: tags are made for a call format"


def _kv(spec: Spec, model: Architecture, gpu: Gpu) -> Iterator[str]:
    kv = spec.kv
    if spec.engine != "vllm":
        return
    latent = model.latent
    if kv.format in ("nvfp4", "fp8_ds_mla") and latent is None:
        yield f"kv.format {kv.format!r} is a row of latent attention, which {model.name} has not"
    elif kv.format == "nvfp4" and latent and (latent.rank, latent.rope) != (LATENT_DIMS, ROPE_DIMS):
        yield f"kv.format 'nvfp4' is for rows of {LATENT_DIMS} + {ROPE_DIMS} dimensions"
    if (
        kv.format == "nvfp4"
        and gpu.capability < 100
        and not (kv.hopper_plugin and gpu.capability == 90)
    ):
        yield (
            f"kv.format 'nvfp4' needs sm_100, or sm_90 with kv.hopper_plugin; {gpu.name} is"
            f" sm_{gpu.capability}"
        )
    if kv.format in ("fp8", "fp8_ds_mla") and 0 < gpu.capability < 89:
        yield f"kv.format {kv.format!r} needs sm_89 or newer; {gpu.name} is sm_{gpu.capability}"
    if kv.block_tokens & (kv.block_tokens - 1) or not 1 <= kv.block_tokens <= 1024:
        yield f"kv.block_tokens {kv.block_tokens} is not a power of two up to 1024"
    elif model.indexer is not None and kv.block_tokens != SPARSE_BLOCK_TOKENS:
        yield f"kv.block_tokens {kv.block_tokens}: sparse attention has pages of 64"
    yield from _layout(spec, model)
    if not gpu.capability:
        yield from vllm_cpu.reasons_against(kv, model)
    if kv.host_tier and kv.host_tier.gib_per_gpu * gpu.per_node * GIB > gpu.node_memory_bytes:
        yield (
            f"kv.host_tier: {kv.host_tier.gib_per_gpu} GiB for each of {gpu.per_node} GPUs exceed"
            f" a node's {gpu.node_memory_bytes // GIB} GiB"
        )


def _layout(spec: Spec, model: Architecture) -> Iterator[str]:
    """A block-major pool is one array of equal strides, which the kernels must be able to step."""
    kv = spec.kv
    if not kv.layout.block_outermost or model.latent is None:
        return
    row = row_bytes(model, kv.format)
    index = 132 * model.indexer.layers if model.indexer else 0
    stride = kv.block_tokens * (model.cached_layers * row + index)
    if kv.format == "nvfp4" and stride % row:
        yield (
            f"kv.layout {kv.layout.value}: a block of {stride} bytes is no multiple of the row of"
            f" {row}, so the decode kernel's copies cannot address it"
        )


def _spread(model: Architecture, gpu: Gpu, parallel: Parallelism) -> Iterator[str]:
    tensor = parallel.tensor
    if model.heads % tensor:
        yield f"{model.heads} heads are not divisible by {tensor}"
    if model.latent is None and max(model.kv_heads, tensor) % min(model.kv_heads, tensor):
        yield f"{model.kv_heads} KV heads and {tensor} GPUs do not divide each other"
    if model.experts and parallel.experts_dealt_out and model.experts % parallel.gpus:
        yield f"{model.experts} experts are not divisible by {parallel.gpus}"
    if model.experts and not parallel.experts_dealt_out and model.expert_width % parallel.gpus:
        yield f"experts {model.expert_width} wide are not divisible by {parallel.gpus}"
    if not model.experts and parallel.kind == "TEP":
        yield f"{model.name} has no experts to deal out; use TP{parallel.gpus}"
    if parallel.gpus > gpu.nvlink_domain:
        yield f"{parallel.gpus} GPUs are more than an NVLink domain of {gpu.nvlink_domain}"
    if parallel.gpus > gpu.per_node and parallel.gpus % gpu.per_node:
        yield f"{parallel.gpus} GPUs do not fill nodes of {gpu.per_node}"


def _fit(
    spec: Spec, model: Architecture, gpu: Gpu, pool: PoolSpec, parallel: Parallelism
) -> Iterator[str]:
    if spec.engine != "vllm":
        return
    if model.latent is None and spec.kv.format in ("nvfp4", "fp8_ds_mla"):
        return  # said already; it has no size
    memory = gpu_memory(
        model,
        gpu,
        parallel,
        routed=spec.model.routed_weights,
        other=spec.model.other_weights,
        kv=spec.kv.format,
        memory_fraction=spec.kv.memory_fraction,
        tokens_per_step=pool.tokens_per_step,
    )
    if memory.cache <= 0:
        yield (
            f"weights of {memory.weights / 1e9:.1f} GB and activations of"
            f" {memory.activations / 1e9:.1f} GB do not fit the"
            f" {(memory.total - memory.unused) / 1e9:.1f} GB that a {gpu.name} may use"
        )
    elif memory.cached_tokens < spec.model.context_tokens:
        yield (
            f"a cache of {memory.cached_tokens} tokens holds no context of"
            f" {spec.model.context_tokens}"
        )
    if WEIGHT_BITS[spec.model.routed_weights] == 8 and 0 < gpu.capability < 89:
        yield f"fp8 weights need sm_89 or newer; {gpu.name} is sm_{gpu.capability}"


def _gpus(spec: Spec) -> Iterator[str]:
    try:
        wanted = spec.gpus
    except ValueError:
        return  # said already
    if spec.engine == "vllm" and wanted > spec.hardware.gpus:
        yield f"the pools take {wanted} GPUs, hardware.gpus has {spec.hardware.gpus}"
