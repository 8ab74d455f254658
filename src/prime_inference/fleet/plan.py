"""From model, hardware and targets to memory, cache and a choice of topology.

Everything is derived from the model's config and the data in `hardware`; the constants
that are assumptions are named in `speed`, `memory` and here. Published figures stand
beside what was derived, never in its place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.check import bounds, reasons_against
from prime_inference.fleet.errors import PlanImpossible
from prime_inference.fleet.formats import KvFormat, index_bytes, kv_bytes_per_token, row_bytes
from prime_inference.fleet.hardware import GPUS, Gpu
from prime_inference.fleet.memory import GpuMemory, gpu_memory, replica_tokens
from prime_inference.fleet.parallelism import Parallelism
from prime_inference.fleet.spec import PoolSpec, Spec, TopologySpec
from prime_inference.fleet.speed import decode_seconds, first_token_seconds, step_seconds
from prime_inference.fleet.transfer import TransferPlan, transfers

SHARED_PREFIX_TOKENS = 200_000
"""System prompts and tool definitions that every rank comes to hold: 20 agents of 10,000 tokens.
An assumption; each rank beyond the first keeps a copy that adds nothing."""

GPU_COUNTS = (1, 2, 4, 8)
"""Of one replica. A replica fails as a whole: beyond 8 one bad GPU of an NVL72 takes more than a
ninth of it down, whatever the cache would gain."""


@dataclass(frozen=True, slots=True)
class CacheRow:
    """A KV format: one row, all layers of one token, and the gain over bare FP8."""

    format: KvFormat
    row_bytes: int
    index_bytes_per_token: int
    bytes_per_token: int
    gain_over_fp8: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to spread a replica. Tokens are of the replica, seconds of its roofline."""

    parallel: str
    gpus: int
    memory: GpuMemory
    replica_tokens: int
    usable_low: int  # sessions land on ranks at random and stay
    usable_high: int  # the router fills ranks evenly
    sessions: int  # histories of the SLO that usable_low holds
    first_token_seconds: float
    inter_token_seconds: float
    meets_first_token: bool
    meets_inter_token: bool

    @property
    def usable_per_gpu(self) -> float:
        return self.usable_low / self.gpus


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pool of the spec should be, and why."""

    role: str
    chosen: str
    in_spec: str
    reason: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure that was derived beside one that was published."""

    what: str
    low: float
    high: float
    published: str
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known before a GPU was touched."""

    spec: str
    model: str
    gpu: str
    history_tokens: int
    turn_tokens: int
    rows: tuple[CacheRow, ...]
    candidates: dict[str, tuple[Candidate, ...]]  # by role
    excluded: dict[str, str]  # parallelism: why it cannot be
    choices: tuple[Choice, ...]
    ratios: tuple[Ratio, ...]
    transfers: tuple[TransferPlan, ...]


def make_plan(spec: Spec, model: Architecture) -> Plan:
    """Raises PlanImpossible."""
    broken = [str(bound) for bound in bounds(spec) if not bound.holds]
    if not spec.topology.pools:
        broken.append("topology: no pools")
    if broken:
        raise PlanImpossible("\n  ".join(["nothing can be derived:", *broken]))
    gpu = GPUS.get(spec.hardware.gpu)
    if gpu is None:
        raise PlanImpossible(f"hardware.gpu {spec.hardware.gpu!r} is none of {', '.join(GPUS)}")
    if spec.slo.history_tokens + spec.slo.turn_tokens > spec.model.context_tokens:
        raise PlanImpossible(
            f"a history of {spec.slo.history_tokens} and a turn of {spec.slo.turn_tokens} tokens"
            f" exceed the context of {spec.model.context_tokens}"
        )
    excluded: dict[str, str] = {}
    candidates = {
        role: tuple(_candidates(spec, model, gpu, role, pool, excluded))
        for role, pool in spec.topology.pools.items()
    }
    if not all(candidates.values()):
        raise PlanImpossible("\n  ".join(["no topology fits:", *dict.fromkeys(excluded.values())]))
    return Plan(
        spec=spec.name,
        model=spec.model.id,
        gpu=gpu.name,
        history_tokens=spec.slo.history_tokens,
        turn_tokens=spec.slo.turn_tokens,
        rows=tuple(cache_rows(model)),
        candidates=candidates,
        excluded=excluded,
        choices=tuple(
            _choose(spec, role, pool, candidates[role])
            for role, pool in spec.topology.pools.items()
        ),
        ratios=tuple(_ratios(spec, model, gpu)),
        transfers=tuple(transfers(spec, model)),
    )


def cache_rows(model: Architecture) -> Iterator[CacheRow]:
    """Every format that the model's rows can have."""
    formats: tuple[KvFormat, ...] = ("bf16", "fp8")
    if model.latent is not None:
        formats = ("bf16", "fp8_ds_mla", "fp8", "nvfp4")
    plain = kv_bytes_per_token(model, "fp8")
    for one in formats:
        whole = kv_bytes_per_token(model, one)
        yield CacheRow(one, row_bytes(model, one), index_bytes(model), whole, plain / whole)


# -- candidates


def _candidates(
    spec: Spec,
    model: Architecture,
    gpu: Gpu,
    role: str,
    pool: PoolSpec,
    excluded: dict[str, str],
) -> Iterator[Candidate]:
    for gpus in GPU_COUNTS:
        for kind in ("TP", "TEP", "DEP") if model.experts else ("TP",):
            parallel = f"{kind}{gpus}"
            if gpus == 1 and kind != "TP":
                continue
            reason = _impossible(spec, model, pool, parallel)
            if reason:
                excluded[f"{role} {parallel}"] = reason
            else:
                yield candidate(spec, model, gpu, pool, Parallelism.parse(parallel))


def _impossible(spec: Spec, model: Architecture, pool: PoolSpec, parallel: str) -> str | None:
    """The first reason against one replica of this topology alone."""
    one = replace(pool, parallel=parallel, replicas=1)
    pools = TopologySpec(workers=one)  # whether the pools go together is not asked here
    alone = replace(spec, topology=pools, kv=replace(spec.kv, transfer="none"))
    for reason in reasons_against(alone, model):
        return reason.removeprefix(f"topology.aggregated: {parallel}: ")
    return None


def candidate(
    spec: Spec, model: Architecture, gpu: Gpu, pool: PoolSpec, parallel: Parallelism
) -> Candidate:
    """What a replica of `pool` would be, spread as `parallel`."""
    weights = spec.model
    slo = spec.slo
    memory = _memory(spec, model, gpu, pool, parallel, spec.kv.format)
    low, high = usable_tokens(memory, parallel, slo.history_tokens)
    step = step_seconds(
        model, gpu, parallel, weights.routed_weights, pool.tokens_per_step, slo.history_tokens
    )
    first = first_token_seconds(step, slo.turn_tokens, pool.tokens_per_step)
    inter = decode_seconds(
        model,
        gpu,
        parallel,
        routed=weights.routed_weights,
        other=weights.other_weights,
        kv=spec.kv.format,
        sequences=pool.sequences,
        context=slo.history_tokens,
    )
    return Candidate(
        parallel=str(parallel),
        gpus=parallel.gpus,
        memory=memory,
        replica_tokens=replica_tokens(memory, parallel),
        usable_low=low,
        usable_high=high,
        sessions=low // (slo.history_tokens + slo.turn_tokens),
        first_token_seconds=first,
        inter_token_seconds=inter,
        meets_first_token=first * 1000 <= slo.first_token_ms,
        meets_inter_token=inter * 1000 <= slo.inter_token_ms,
    )


def usable_tokens(memory: GpuMemory, parallel: Parallelism, history: int) -> tuple[int, int]:
    """Different tokens that a replica keeps in practice: at worst and at best.

    Prefixes that every rank holds count once. At worst sessions land on ranks at random: the
    fullest of n ranks with m sessions each is 1 + sqrt(2 ln n / m) times as full as the mean,
    and evicts first.
    """
    each = memory.cached_tokens
    shared = min(SHARED_PREFIX_TOKENS, each)
    best = parallel.data * (each - shared) + shared
    sessions = max(1.0, each / history)
    fullest = 1 + math.sqrt(2 * math.log(parallel.data) / sessions)
    return int(best / fullest), best


def _memory(
    spec: Spec,
    model: Architecture,
    gpu: Gpu,
    pool: PoolSpec,
    parallel: Parallelism,
    kv: KvFormat,
) -> GpuMemory:
    return gpu_memory(
        model,
        gpu,
        parallel,
        routed=spec.model.routed_weights,
        other=spec.model.other_weights,
        kv=kv,
        memory_fraction=spec.kv.memory_fraction,
        tokens_per_step=pool.tokens_per_step,
    )


# -- choices


def _choose(spec: Spec, role: str, pool: PoolSpec, candidates: tuple[Candidate, ...]) -> Choice:
    """The most cache for each GPU among those that meet the targets of the role."""

    def meets(one: Candidate) -> bool:
        first = one.meets_first_token or role == "decode"
        return first and (one.meets_inter_token or role == "prefill")

    able = [one for one in candidates if meets(one)]
    best = max(able or candidates, key=lambda one: (one.usable_per_gpu, -one.gpus))
    others = [one for one in able if one is not best]
    target = (
        f"first token in {best.first_token_seconds:.2f} s"
        if role == "prefill"
        else f"{best.inter_token_seconds * 1000:.0f} ms a token"
    )
    reason = f"{target} at the roofline, {best.usable_per_gpu / 1e6:.2f}M usable tokens a GPU"
    if others:
        next_best = max(others, key=lambda one: one.usable_per_gpu)
        reason += f"; next is {next_best.parallel} with {next_best.usable_per_gpu / 1e6:.2f}M"
    if not able:
        reason += "; no topology meets the targets, this one caches most"
    return Choice(role, best.parallel, pool.parallel, reason)


# -- derived beside published


def _ratios(spec: Spec, model: Architecture, gpu: Gpu) -> Iterator[Ratio]:
    if model.latent is None:
        return
    yield _format_gain(model)
    pool = spec.topology.prefill or spec.topology.workers
    if pool is not None and model.experts:
        yield from _topology_gain(spec, model, gpu, pool)


def _format_gain(model: Architecture) -> Ratio:
    """NVFP4 over bare FP8: index keys do not shrink, so how many layers keep them matters."""
    gains, terms = [], []
    for layers in {model.indexer.layers, model.cached_layers} if model.indexer else {0}:
        indexer = model.indexer and dataclasses.replace(model.indexer, layers=layers)
        one = dataclasses.replace(model, indexer=indexer)
        before, after = kv_bytes_per_token(one, "fp8"), kv_bytes_per_token(one, "nvfp4")
        gains.append(before / after)
        terms.append(
            f"{model.cached_layers} rows of {row_bytes(one, 'fp8')} to {row_bytes(one, 'nvfp4')} B"
            f" and {layers} index keys of 132 B: {before} to {after} B"
        )
    return Ratio(
        "cached tokens, NVFP4 over FP8 (index keys of some layers .. of all)",
        min(gains),
        max(gains),
        "1.09M to 1.63M tokens: 1.495",
        tuple(sorted(terms, reverse=True)),
    )


def _topology_gain(spec: Spec, model: Architecture, gpu: Gpu, pool: PoolSpec) -> Iterator[Ratio]:
    apart, together = Parallelism("DEP", 8), Parallelism("TEP", 8)
    spread = {
        parallel: _memory(spec, model, gpu, pool, parallel, spec.kv.format)
        for parallel in (apart, together)
    }
    if min(memory.cache for memory in spread.values()) <= 0:
        return
    low, high = usable_tokens(spread[apart], apart, spec.slo.history_tokens)
    same = spread[together].cached_tokens
    ideal = replica_tokens(spread[apart], apart) / same
    yield Ratio(
        "usable cache of 8 GPUs, DEP8 over TEP8 (random placement .. even placement)",
        low / same,
        high / same,
        "roughly five times",
        (
            "TEP8 keeps the same rows on all 8 GPUs, DEP8 different ones: 8.00",
            f"whole attention on every GPU: weights {spread[together].weights / 1e9:.1f} to"
            f" {spread[apart].weights / 1e9:.1f} GB, cache {spread[together].cache / 1e9:.1f} to"
            f" {spread[apart].cache / 1e9:.1f} GB: {ideal:.2f}",
            f"{SHARED_PREFIX_TOKENS} tokens of prefixes that every rank keeps: {high / same:.2f}",
            f"the fullest rank evicts first, if sessions are placed at random: {low / same:.2f}",
        ),
    )
