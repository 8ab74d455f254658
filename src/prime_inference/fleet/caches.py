"""How well a deployment's caches serve it, from its processes' own metrics. Pure.

Counters are since each process started; whoever wants a rate subtracts two reports.
Dynamo's names are those of 1.6.1, vLLM's of 0.31.0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families

DECODE = "decode"
"""The router sees a request twice where pools are apart. Prefixes are looked for where prompts are
computed, so what it says of decode workers would halve every rate."""


class CacheReport(Struct, frozen=True):
    """One deployment. None: its processes do not say."""

    prompt_tokens: float = 0
    cached_tokens: float = 0  # of those, found on the worker that the router chose
    host_queries: float = 0  # tokens looked for in the second tier
    host_hits: float = 0
    queue_seconds: float | None = None  # mean wait of a request in a worker's queue
    transfer_seconds: float | None = None  # mean of a KV transfer

    @property
    def hit_rate(self) -> float | None:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def host_hit_rate(self) -> float | None:
        return self.host_hits / self.host_queries if self.host_queries else None


class _Totals:
    """Samples of several processes, added up by name."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        for text in texts:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.labels.get("phase") != DECODE:
                        self._sums[sample.name] += sample.value

    def of(self, name: str) -> float:
        return self._sums.get(name, 0.0)

    def mean(self, *histograms: str) -> float | None:
        """Of the first histogram that has counted anything."""
        for name in histograms:
            if count := self.of(f"{name}_count"):
                return self.of(f"{name}_sum") / count
        return None


def cache_report(
    frontend: str, workers: Sequence[str], second_tier: Sequence[str] = ()
) -> CacheReport:
    """From the texts of `/metrics`. Raises ValueError for what is no such text.

    `second_tier` are those of the workers that look into one. For vLLM a block that a decode
    worker pulls from where it was computed is such a hit too, and is none here.
    """
    router, engines, tiers = _Totals([frontend]), _Totals(workers), _Totals(second_tier)
    return CacheReport(
        prompt_tokens=router.of("dynamo_component_router_input_sequence_tokens_sum"),
        cached_tokens=router.of("dynamo_component_router_kv_selected_cached_prefix_tokens_total"),
        host_queries=tiers.of("vllm:external_prefix_cache_queries_total"),
        host_hits=tiers.of("vllm:external_prefix_cache_hits_total"),
        queue_seconds=engines.mean(
            "vllm:request_queue_time_seconds", "dynamo_work_handler_permit_wait_seconds"
        ),
        transfer_seconds=engines.mean("vllm:nixl_xfer_time_seconds"),
    )


def families(reports: Iterable[tuple[str, str, CacheReport]]) -> Iterator[Metric]:
    """Prometheus' form of reports with their deployment and datacenter."""
    described = {
        "prompt_tokens": "Prompt tokens that the router has seen.",
        "cached_tokens": "Prompt tokens found in the cache of the chosen worker.",
        "host_queries": "Tokens looked for in the second cache tier.",
        "host_hits": "Tokens found in the second cache tier.",
        "queue_seconds": "Mean wait of a request in a worker's queue.",
        "transfer_seconds": "Mean time of a KV transfer.",
    }
    made = {
        name: GaugeMetricFamily(f"prime_fleet_{name}", text, labels=["deployment", "datacenter"])
        for name, text in described.items()
    }
    for deployment, datacenter, report in reports:
        for name, family in made.items():
            value = getattr(report, name)
            if value is not None:
                family.add_metric([deployment, datacenter], value)
    yield from made.values()
