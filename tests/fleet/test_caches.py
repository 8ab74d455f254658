"""Cache reports from the text that processes write."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from prime_inference.adapters.files import cache_reports
from prime_inference.adapters.files.cache_reports import CacheReportsFile
from prime_inference.domain.caches import CacheReport
from prime_inference.fleet import caches
from prime_inference.fleet.caches import answer_asks, asks_file, cache_report
from prime_inference.gateway.cache_figures import report_families

ROUTER = """
# TYPE dynamo_component_router_input_sequence_tokens histogram
dynamo_component_router_input_sequence_tokens_bucket{phase="prefill",le="+Inf"} 4
dynamo_component_router_input_sequence_tokens_sum{phase="prefill"} 1000
dynamo_component_router_input_sequence_tokens_count{phase="prefill"} 4
dynamo_component_router_input_sequence_tokens_sum{phase="decode"} 1000
# TYPE dynamo_component_router_kv_selected_cached_prefix_tokens counter
dynamo_component_router_kv_selected_cached_prefix_tokens_total{phase="prefill"} 700
dynamo_component_router_kv_selected_cached_prefix_tokens_total{phase="decode"} 0
"""

VLLM = """
# TYPE vllm:external_prefix_cache_queries counter
vllm:external_prefix_cache_queries_total{engine="0"} 300
vllm:external_prefix_cache_queries_total{engine="1"} 100
# TYPE vllm:external_prefix_cache_hits counter
vllm:external_prefix_cache_hits_total{engine="0"} 100
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_sum 3.0
vllm:request_queue_time_seconds_count 6
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_sum 0.3
vllm:nixl_xfer_time_seconds_count 3
"""

MOCKER = """
# TYPE dynamo_work_handler_permit_wait_seconds histogram
dynamo_work_handler_permit_wait_seconds_sum 0.2
dynamo_work_handler_permit_wait_seconds_count 2
"""


def test_a_request_counts_where_its_prompt_is_computed():
    report = cache_report(ROUTER, [])
    assert (report.prompt_tokens, report.cached_tokens, report.hit_rate) == (1000, 700, 0.7)


def test_the_second_tier_the_queue_and_transfers_are_the_workers_word():
    report = cache_report(ROUTER, [VLLM, VLLM], [VLLM])
    assert report.host_hit_rate == pytest.approx(0.25)
    assert report.queue_seconds == pytest.approx(0.5)
    assert report.transfer_seconds == pytest.approx(0.1)


def test_kv_that_a_decode_worker_pulls_is_no_hit_of_a_second_tier():
    """vLLM counts both under one name."""
    assert cache_report(ROUTER, [VLLM]).host_hit_rate is None


def test_dynamos_own_queue_stands_in_where_the_engine_has_none():
    assert cache_report("", [MOCKER]).queue_seconds == pytest.approx(0.1)


def test_what_nobody_says_is_not_zero():
    assert cache_report("", [""]) == CacheReport()
    assert CacheReport().hit_rate is None
    assert CacheReport().host_hit_rate is None


def test_reports_in_prometheus_form():
    class Reports:
        def collect(self):
            return report_families([("x", "dc-a", cache_report(ROUTER, [VLLM]))])

    registry = CollectorRegistry()
    registry.register(Reports())
    text = generate_latest(registry).decode()
    assert 'prime_fleet_cached_tokens{datacenter="dc-a",deployment="x"} 700.0' in text
    assert 'prime_fleet_queue_seconds{datacenter="dc-a",deployment="x"} 0.5' in text


# -- asked for when somebody looks


@pytest.fixture
async def workers(tmp_path, monkeypatch):
    """How often workers are asked, by what answers asks in `tmp_path`."""
    monkeypatch.setattr(caches, "LOOK_SECONDS", 0.01)
    asked: list[None] = []

    async def collect():
        asked.append(None)
        return {"a": CacheReport(len(asked), 0)}

    task = asyncio.create_task(answer_asks(tmp_path / "caches.json", collect))
    await asyncio.sleep(0)
    yield asked
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_workers_are_asked_only_when_somebody_looks_and_the_figures_are_new(
    tmp_path, workers
):
    one, other = (CacheReportsFile(tmp_path / "caches.json", time.time) for _ in range(2))
    await asyncio.sleep(0.1)
    assert workers == []
    await asyncio.gather(one.refresh(), other.refresh())
    assert one.latest() == other.latest() == {"a": CacheReport(1, 0)}
    await one.refresh()  # fresh enough
    assert len(workers) == 1


async def test_figures_that_are_old_are_taken_anew(tmp_path, workers, monkeypatch):
    monkeypatch.setattr(cache_reports, "FRESH_SECONDS", 0.05)
    monkeypatch.setattr(caches, "FRESH_SECONDS", 0.05)
    reports = CacheReportsFile(tmp_path / "caches.json", time.time)
    for _ in range(3):
        await reports.refresh()
        await asyncio.sleep(0.1)
    assert len(workers) == 3


async def test_who_never_answers_is_waited_for_once_and_who_never_promised_not_at_all(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cache_reports, "WAIT_SECONDS", 3600.0)
    reports = CacheReportsFile(tmp_path / "caches.json", time.time)
    await asyncio.wait_for(reports.refresh(), 10)  # a list that somebody wrote by hand
    assert list(tmp_path.iterdir()) == []
    asks_file(tmp_path / "caches.json").touch()  # left by a launcher that was killed
    monkeypatch.setattr(cache_reports, "WAIT_SECONDS", 0.05)
    await reports.refresh()
    monkeypatch.setattr(cache_reports, "WAIT_SECONDS", 3600.0)
    await asyncio.wait_for(reports.refresh(), 10)
    assert reports.latest() == {}
