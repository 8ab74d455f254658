"""Whether the parts of a spec go together. Pure; every reason is found, not just the first."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from prime_inference.domain.fleet import MOST_COUNT, MOST_SLOTS, why_no_name
from prime_inference.domain.suggestions import did_you_mean
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
MAX_COMPONENTS = 1000  # replicas of one pool: a typing error above, as the next ones
MAX_STEP_TOKENS = 10_000_000
MAX_SEQUENCES = 1_000_000
MAX_GPUS = 100_000
MAX_GIB = 65_536
MAX_SPEED = 1_000_000.0
MAX_WEIGHT = 1_000_000.0
MAX_MILLISECONDS = 3_600_000.0
SPEC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
HOST_AND_PORT = re.compile(r"([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}")

TOOL_PARSERS = frozenset({
    "deepseek-v4", "deepseek_v3", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4",
    "deepseek_v41", "deepseekv4", "default", "gemma-4", "gemma4", "glm45", "glm47", "harmony",
    "hermes", "inkling", "jamba", "kimi-k3", "kimi_k2", "kimi_k25", "kimi_k3", "llama3_json",
    "minimax-m3", "minimax-m3-nom", "minimax_m2", "minimax_m3", "minimax_m3_nom", "mistral",
    "muse", "muse_glimmer", "nemotron_deci", "nemotron_nano", "phi4", "pythonic", "qwen25",
    "qwen3", "qwen3_coder",
})  # fmt: skip
"""Dynamo 1.6.1's, as `dynamo.llm.get_tool_parser_names` has them (tests/dynamo checks)."""

REASONING_PARSERS = frozenset({
    "basic", "deepseek-v4", "deepseek_r1", "deepseek_v3", "deepseek_v3_1", "deepseek_v3_2",
    "deepseek_v4", "deepseek_v41", "deepseekv4", "gemma-4", "gemma4", "glm45", "glm47",
    "gpt_oss", "granite", "inkling", "kimi", "kimi-k3", "kimi_k2", "kimi_k25", "kimi_k3",
    "minimax-m3", "minimax_append_think", "minimax_m2", "minimax_m3", "mistral", "muse",
    "muse_glimmer", "nemotron3", "nemotron_deci", "nemotron_nano", "nemotron_v3", "qwen3",
    "qwen3_coder", "step3",
})  # fmt: skip
"""Likewise, of `get_reasoning_parser_names`."""


class Bound(NamedTuple):
    """A number of the spec and what it may be. NaN is in no range."""

    field: str
    value: float
    least: float
    most: float

    @property
    def holds(self) -> bool:
        return self.least <= self.value <= self.most

    def __str__(self) -> str:
        return f"{self.field} {self.value} is not within {self.least} and {self.most}"


def require(spec: Spec, model: Architecture) -> None:
    """Raises SpecImpossible with every reason."""
    reasons = list(reasons_against(spec, model))
    if reasons:
        raise SpecImpossible(spec.name, reasons)


def reasons_against(spec: Spec, model: Architecture) -> Iterator[str]:
    """Why the spec cannot work; empty when it can."""
    yield from _names(spec)
    broken = [bound for bound in bounds(spec) if not bound.holds]
    yield from map(str, broken)
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
        if not any(bound.field.startswith(SIZES) for bound in broken):
            yield from (f"{where}: {reason}" for reason in _fit(spec, model, gpu, pool, parallel))
    yield from _gpus(spec)


SIZES = ("model.", "kv.", "topology.")  # numbers that memory is computed from


def bounds(spec: Spec) -> Iterator[Bound]:
    """Every number of a spec, however it is used."""
    kv, router, mocker, slo = spec.kv, spec.router, spec.mocker, spec.slo
    yield Bound("model.context_tokens", spec.model.context_tokens, 1, MOST_COUNT)
    yield Bound("hardware.gpus", spec.hardware.gpus, 1, MAX_GPUS)
    for role, pool in spec.topology.pools.items():
        where = f"topology.{role}"
        yield Bound(f"{where}.replicas", pool.replicas, 1, MAX_COMPONENTS)
        yield Bound(f"{where}.sequences", pool.sequences, 1, MAX_SEQUENCES)
        yield Bound(f"{where}.tokens_per_step", pool.tokens_per_step, 1, MAX_STEP_TOKENS)
    yield Bound("limits.slots", spec.limits.slots, 1, MOST_SLOTS)
    if spec.limits.max_output_tokens is not None:
        yield Bound("limits.max_output_tokens", spec.limits.max_output_tokens, 1, MOST_COUNT)
    yield Bound("kv.block_tokens", kv.block_tokens, 1, 1024)
    yield Bound("kv.memory_fraction", kv.memory_fraction, 0.01, 0.98)
    if kv.host_tier is not None:
        yield Bound("kv.host_tier.gib_per_gpu", kv.host_tier.gib_per_gpu, 1, MAX_GIB)
    yield Bound("router.overlap_credit", router.overlap_credit, 0, MAX_WEIGHT)
    yield Bound("router.temperature", router.temperature, 0, MAX_WEIGHT)
    yield Bound("router.migration_limit", router.migration_limit, 0, MOST_COUNT)
    yield Bound(
        "router.session_affinity_seconds", router.session_affinity_seconds, 0, MAX_AFFINITY_SECONDS
    )
    yield Bound("mocker.speedup", mocker.speedup, 0, MAX_SPEED)  # 0: takes no time at all
    yield Bound("mocker.gpu_blocks", mocker.gpu_blocks, 1, MOST_COUNT)
    yield Bound("mocker.host_blocks", mocker.host_blocks, 0, MOST_COUNT)
    yield Bound("slo.first_token_ms", slo.first_token_ms, 0.001, MAX_MILLISECONDS)
    yield Bound("slo.inter_token_ms", slo.inter_token_ms, 0.001, MAX_MILLISECONDS)
    yield Bound("slo.history_tokens", slo.history_tokens, 1, MOST_COUNT)
    yield Bound("slo.turn_tokens", slo.turn_tokens, 1, MOST_COUNT)


def _names(spec: Spec) -> Iterator[str]:
    if not SPEC_NAME.fullmatch(spec.name):
        yield f"name {spec.name[:80]!r} is not letters, digits, dots and dashes, 100 at most"
    for field, name in (("model.id", spec.model.id), ("model.revision", spec.model.revision)):
        if reason := why_no_name(name):
            yield f"{field} {name[:80]!r} {reason}"
    for field, text in (("model.source", spec.model.source), ("image", spec.image)):
        if not text.strip() or not text.isprintable() or text.startswith("-"):
            yield f"{field} {text[:80]!r} is empty, a flag, or has characters that are not printed"
    tier = spec.kv.host_tier
    if tier is not None and tier.master and not HOST_AND_PORT.fullmatch(tier.master):
        yield f"kv.host_tier.master {tier.master[:80]!r} is not host:port"


def _numbers(spec: Spec, model: Architecture) -> Iterator[str]:
    if spec.model.context_tokens > model.context_tokens:
        yield (
            f"model.context_tokens {spec.model.context_tokens} is more than the"
            f" {model.context_tokens} that {model.name} was made for"
        )
    for role, pool in spec.topology.pools.items():
        if pool.tokens_per_step < spec.kv.block_tokens:
            yield (
                f"topology.{role}.tokens_per_step {pool.tokens_per_step} is less than a block of"
                f" {spec.kv.block_tokens} tokens"
            )
    room = spec.mocker.gpu_blocks * spec.kv.block_tokens
    if spec.engine == "mocker" and room < spec.model.context_tokens:
        yield (
            f"mocker.gpu_blocks: a cache of {room} tokens holds no context of"
            f" {spec.model.context_tokens}"
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
    if not 0 <= router.host_hit_weight <= 1:
        yield "router.host_hit_weight is not within 0 and 1: no block is worth more than on the GPU"
    if tools.call_parser and tools.call_parser not in TOOL_PARSERS:
        yield _unknown_parser("call_parser", tools.call_parser, TOOL_PARSERS)
    if tools.reasoning_parser and tools.reasoning_parser not in REASONING_PARSERS:
        yield _unknown_parser("reasoning_parser", tools.reasoning_parser, REASONING_PARSERS)
    if tools.structural_tags and not tools.call_parser:
        yield "tools.structural_tags needs tools.call_parser: tags are made for a call format"


def _unknown_parser(field: str, name: str, known: Collection[str]) -> str:
    near = did_you_mean(name, sorted(known))
    return f"tools.{field} {name[:80]!r} is not one of Dynamo's.{near}".removesuffix(".")


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
    if kv.block_tokens & (kv.block_tokens - 1):
        yield f"kv.block_tokens {kv.block_tokens} is not a power of two"
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
