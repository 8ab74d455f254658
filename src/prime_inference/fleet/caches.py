"""How well a deployment's caches serve it, from its processes' own metrics.

Counters are since each process started; whoever wants a rate subtracts two reports.
Dynamo's names are those of 1.6.1, vLLM's of 0.31.0. Gateways read the reports from a file
beside the list of ready deployments. Workers are asked when somebody looks: whoever looks
touches another file there, if there is one, which says that somebody answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from prime_inference.domain.caches import CacheReport
from prime_inference.fleet.ready import replace_file

log = logging.getLogger(__name__)

FRESH_SECONDS = 5.0  # Prometheus looks every 15 s or so; several who look share what was asked
LOOK_SECONDS = 0.25  # one stat of a file

ROUTER_TOKENS = "dynamo_component_router_input_sequence_tokens_sum"
ROUTER_CACHED = "dynamo_component_router_kv_selected_cached_prefix_tokens_total"
TIER_QUERIES = "vllm:external_prefix_cache_queries_total"
TIER_HITS = "vllm:external_prefix_cache_hits_total"
QUEUES = ("vllm:request_queue_time_seconds", "dynamo_work_handler_permit_wait_seconds")
TRANSFERS = ("vllm:nixl_xfer_time_seconds",)
NAMES = (
    *(ROUTER_TOKENS, ROUTER_CACHED, TIER_QUERIES, TIER_HITS),
    *(f"{name}_{part}" for name in (*QUEUES, *TRANSFERS) for part in ("sum", "count")),
)

SAMPLE = re.compile(
    rf"^({'|'.join(NAMES)})(?:\{{((?:[^\"}}\n]|\"(?:[^\"\\\n]|\\.)*+\")*+)\}})?[ \t]+(\S+)",
    re.MULTILINE,
)
"""Lines of Prometheus' text that are looked for: name, labels, value. The rest of a text, which may
be large, is not parsed."""

IS_DECODE = re.compile(r'(?:^|,)\s*phase="decode"')
"""The router sees a request twice where pools are apart. Prefixes are looked for where prompts are
computed, so what it says of decode workers would halve every rate."""

MOST_EXACT = 2.0**53  # above, one more is no other number


class _Totals:
    """Samples of several processes, added up by name; what is no count says nothing."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)
        for text in texts:
            for name, labels, value in SAMPLE.findall(text):
                count = _count(value)
                if count is not None and not IS_DECODE.search(labels):
                    self._sums[name] += count

    def of(self, name: str) -> float:
        return self._sums.get(name, 0.0)

    def mean(self, *histograms: str) -> float | None:
        """Of the first histogram that has counted anything."""
        for name in histograms:
            if (count := self.of(f"{name}_count")) >= 1:  # a part of one is no count
                return self.of(f"{name}_sum") / count
        return None


def _count(value: str) -> float | None:
    try:
        count = float(value)
    except ValueError:
        return None
    return count if 0 <= count <= MOST_EXACT else None  # not so for NaN


def cache_report(
    frontend: str, workers: Sequence[str], second_tier: Sequence[str] = ()
) -> CacheReport:
    """From the texts of `/metrics`, whatever they are.

    `second_tier` are those of the workers that look into one. For vLLM a block that a decode
    worker pulls from where it was computed is such a hit too, and is none here.
    """
    router, engines, tiers = _Totals([frontend]), _Totals(workers), _Totals(second_tier)
    return CacheReport(
        prompt_tokens=(prompt := router.of(ROUTER_TOKENS)),
        cached_tokens=min(router.of(ROUTER_CACHED), prompt),  # of those, whatever is said
        host_queries=(queries := tiers.of(TIER_QUERIES)),
        host_hits=min(tiers.of(TIER_HITS), queries),
        queue_seconds=engines.mean(*QUEUES),
        transfer_seconds=engines.mean(*TRANSFERS),
    )


class CacheReports(Struct, frozen=True):
    """What the file has: reports by deployment, and when they were taken."""

    taken_at: float  # seconds since the epoch
    reports: dict[str, CacheReport]


class _Document(Struct, frozen=True):
    taken_at: float
    reports: dict[str, msgspec.Raw]


def reports_file(ready_file: Path) -> Path:
    """The file of reports that belongs to a list of ready deployments."""
    return ready_file.with_name("caches.json")


def asks_file(reports: Path) -> Path:
    """What is touched to have the reports taken anew."""
    return reports.with_suffix(".asked")


async def answer_asks(
    reports: Path, collect: Callable[[], Awaitable[dict[str, CacheReport]]]
) -> None:
    """Write reports when somebody asks for them, unless the last are fresh; for ever."""
    asks = asks_file(reports)
    asks.touch()
    seen, taken = _touched(asks), float("-inf")
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        asked = _touched(asks)
        if asked == seen or time.monotonic() - taken < FRESH_SECONDS / 2:  # who asks finds them old
            continue
        seen, taken = asked, time.monotonic()
        found = CacheReports(time.time(), await collect())
        try:
            write_reports(reports, found)
        except OSError as error:  # a full disk must not end what keeps the fleet
            log.warning("cache reports cannot be written: %s", error.strerror)


def _touched(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def write_reports(path: Path, reports: CacheReports) -> None:
    """Replace the file in one step. Raises OSError."""
    replace_file(path, msgspec.json.encode(reports))


def parse_reports(data: bytes) -> CacheReports:
    """Without the reports that are none. Raises msgspec.DecodeError where the whole is none."""
    found = msgspec.json.decode(data, type=_Document)
    reports = {name: _report(raw) for name, raw in found.reports.items()}
    return CacheReports(
        found.taken_at, {name: one for name, one in reports.items() if one is not None}
    )


def _report(raw: msgspec.Raw) -> CacheReport | None:
    try:
        report = msgspec.json.decode(raw, type=CacheReport)
    except (msgspec.DecodeError, RecursionError):
        return None
    told = [value for value in msgspec.structs.astuple(report) if value is not None]
    return report if all(0 <= value < math.inf for value in told) else None
