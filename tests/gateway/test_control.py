"""Live, ready and metrics: on a listener of their own, never on the public port."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.live_fleet import LiveFleet

from .conftest import StartGateway
from .running import MODEL, RunningGateway, eventually

PATHS = ["/live", "/ready", "/metrics"]


async def test_the_process_is_live_and_ready(gateway: RunningGateway):
    for path in ("/live", "/ready"):
        response = await gateway.client.get(gateway.control_url + path)
        assert response.status_code == 200
        assert response.json() == {"status": path[1:]}


async def test_what_is_not_ready_says_why(start_gateway: StartGateway, engine: MockEngine):
    reasons = ["the model is loading"]
    gateway = await start_gateway(engine, not_ready=lambda: reasons[0] if reasons else None)
    response = await gateway.client.get(gateway.control_url + "/ready")
    assert response.status_code == 503
    assert response.json()["reason"] == "the model is loading"
    assert (await gateway.client.get(gateway.control_url + "/live")).status_code == 200
    reasons.clear()
    assert (await gateway.client.get(gateway.control_url + "/ready")).status_code == 200


@pytest.mark.parametrize("path", [*PATHS, "/health", "/debug"])
async def test_nothing_of_it_is_on_the_public_port(gateway: RunningGateway, path: str):
    root = gateway.base_url.removesuffix("/api/v1")
    for prefix in (root, gateway.base_url):
        response = await gateway.client.get(prefix + path, headers=gateway.authorization())
        assert response.status_code == 404


async def test_the_public_api_is_not_on_the_control_port(gateway: RunningGateway):
    for path in ("/api/v1/models", "/", "/live/", "//metrics"):
        response = await gateway.client.get(gateway.control_url + path)
        assert response.status_code == 404


@pytest.mark.parametrize("path", PATHS)
async def test_control_paths_take_get_and_head_only(gateway: RunningGateway, path: str):
    response = await gateway.client.post(gateway.control_url + path)
    assert response.status_code == 405
    assert response.headers["allow"] == "GET, HEAD"
    head = await gateway.client.head(gateway.control_url + path)
    assert (head.status_code, head.content) == (200, b"")


async def test_control_answers_while_the_engine_is_gone_and_streams_hang(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("silence")
    hanging = [asyncio.ensure_future(gateway.chat(stream=True)) for _ in range(20)]
    await eventually(lambda: len(engine.requests) == 20)
    for path in PATHS:
        async with asyncio.timeout(0.5):
            assert (await gateway.client.get(gateway.control_url + path)).status_code == 200
    assert await gateway.metric("prime_requests_in_flight") == 20
    await engine.stop()
    assert {r.status_code for r in await asyncio.gather(*hanging)} == {502}


async def test_metrics_are_in_the_format_of_prometheus(gateway: RunningGateway):
    await gateway.chat()
    response = await gateway.client.get(gateway.control_url + "/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    assert families["prime_generations"].type == "counter"
    assert families["prime_first_token_seconds"].type == "histogram"
    assert all(family.documentation for name, family in families.items() if "prime" in name)


async def test_metrics_move_with_what_happens(gateway: RunningGateway, engine: MockEngine):
    await gateway.chat(max_tokens=3)
    await gateway.stream()
    await gateway.chat(model="acme/nothing")
    engine.behave("status-500")
    await gateway.chat()
    engine.behave("")

    async def count(**labels: str) -> float:
        return await gateway.metric("prime_generations_total", **labels)

    assert await count() == 4
    assert await count(outcome="complete", model=MODEL, route="chat/completions") == 2
    assert await count(outcome="refused", code="model_not_found", model="") == 1
    assert await count(outcome="failed", code="upstream_failed", deployment="engine-0") == 1
    assert await gateway.metric("prime_tokens_total", kind="completion", model=MODEL) == 67
    assert await gateway.metric("prime_generation_seconds_count", model=MODEL) == 3


async def test_the_time_to_the_first_token_is_observed_for_streams(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("slow-first-60ms")
    await gateway.stream()
    assert await gateway.metric("prime_first_token_seconds_count", model=MODEL) == 1
    assert await gateway.metric("prime_first_token_seconds_sum", model=MODEL) > 0.05


async def test_models_that_clients_make_up_make_no_labels(gateway: RunningGateway):
    for number in range(30):
        await gateway.chat(model=f"made/up-{number}")
    text = (await gateway.client.get(gateway.control_url + "/metrics")).text
    assert "made/up" not in text


async def test_what_was_seen_of_an_endpoint_is_told_with_the_model(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("slow-first-50ms.pace-5ms.answer-10")
    for _ in range(3):
        await gateway.stream()
    engine.behave("status-500.first-1.answer-10.pace-5ms")
    await gateway.chat()  # fails, and is answered when tried again
    engine.behave("context-length")
    await gateway.chat()  # the client's own doing: it does not count
    await gateway.generations(5)
    (endpoint,) = (await gateway.get(f"/models/{MODEL}/endpoints")).json()["data"]["endpoints"]
    assert endpoint["provider_name"] == "dc-0"
    for period in ("5m", "30m", "1d"):
        assert endpoint[f"uptime_last_{period}"] == 80.0
    assert set(endpoint["latency_last_30m"]) == {"p50", "p75", "p90", "p99"}
    assert endpoint["latency_last_30m"]["p50"] > 0.04
    assert 0 < endpoint["throughput_last_30m"]["p50"] < 200


async def test_a_task_beside_the_requests_that_fails_is_started_again_and_told_of(
    start_gateway: StartGateway, engine: MockEngine
):
    runs = 0

    async def follow(live: LiveFleet) -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise TypeError("unhashable type: 'list'")
        await asyncio.Event().wait()

    gateway = await start_gateway(engine, follow=follow)
    await eventually(lambda: runs == 2, 10)
    assert (await gateway.chat()).status_code == 200
    ready = await gateway.client.get(gateway.control_url + "/ready")
    failing = {"fleet": "TypeError: unhashable type: 'list'"}
    assert (ready.status_code, ready.json()) == (200, {"status": "ready", "failing": failing})
    fleet = await gateway.client.get(
        gateway.control_url + "/fleet", headers=gateway.authorization()
    )
    assert fleet.json()["failing"] == failing
    text = (await gateway.client.get(gateway.control_url + "/metrics")).text
    counts = {
        sample.labels["task"]: sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "prime_background_failures"
        for sample in family.samples
    }
    assert counts["fleet"] == 1
    assert counts["coordination"] == counts["health checks"] == counts["decision log"] == 0
