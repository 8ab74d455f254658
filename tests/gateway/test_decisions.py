"""What decides where requests go can be counted and read afterwards."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from prime_inference.cli.status import show
from prime_inference.cli.terminal import Terminal
from prime_inference.engines.mock import MockEngine
from tests.redis_server import RedisServer

from .conftest import StartGateway
from .running import MODEL, RunningGateway, eventually


async def count(gateway: RunningGateway, name: str, **labels: str) -> float:
    return await gateway.metric(f"prime_{name}", **labels)


async def test_an_ejection_is_counted_shown_and_logged(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    caplog: pytest.LogCaptureFixture,
):
    gateway = await start_gateway(engine, spare)
    assert await count(gateway, "deployment_state", deployment="engine-0", state="serving") == 1
    engine.behave("status-500")
    for _ in range(8):
        await gateway.chat()
    opened = {"deployment": "engine-0", "state": "open", "cause": "consecutive"}
    assert await count(gateway, "breaker_changes_total", **opened) == 1
    assert await count(gateway, "deployment_state", deployment="engine-0", state="ejected") == 1
    assert await count(gateway, "deployment_state", deployment="engine-0", state="serving") == 0
    failed = {"deployment": "engine-0", "outcome": "failed"}
    assert await count(gateway, "deployment_attempts_total", **failed) == 5
    said = [record for record in caplog.records if "breaker of" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.WARNING]
    assert said[0].getMessage().endswith("engine-0: open, it was closed (consecutive)")


async def test_retries_are_counted_by_what_the_budget_said(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-500.first-1")
    assert (await gateway.chat()).status_code == 200
    assert await count(gateway, "retries_total", model=MODEL, decision="paid") == 1


async def test_refusals_and_waits_are_counted_by_reason(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, slots=1)
    engine.behave("slow-first-200ms")
    await gateway.chat()  # now it is known how long a slot is held
    statuses = [
        reply.status_code for reply in await asyncio.gather(*(gateway.chat() for _ in range(9)))
    ]
    assert await count(gateway, "slot_refusals_total", model=MODEL, reason="full") >= 8
    assert await count(gateway, "waits_total", model=MODEL) >= 8
    unserved = sum(
        [
            await count(gateway, "waits_total", model=MODEL, outcome=outcome)
            for outcome in ("expired", "refused")
        ]
    )
    assert statuses.count(503) == unserved
    assert await count(gateway, "waits_total", model=MODEL, outcome="served") >= 1
    assert await count(gateway, "waiting_requests", model=MODEL) == 0


async def test_leases_and_slots_in_use_are_shown(start_gateway: StartGateway, engine: MockEngine):
    gateway = await start_gateway(engine, slots=7)
    engine.behave("silence")
    hanging = [asyncio.ensure_future(gateway.chat()) for _ in range(3)]
    await eventually(lambda: len(engine.requests) == 3)
    place = {"deployment": "engine-0", "datacenter": "dc-0", "model": MODEL}
    assert await count(gateway, "deployment_slots", **place) == 7
    assert await count(gateway, "deployment_in_flight", **place) == 3
    assert 3 <= await count(gateway, "deployment_leased", **place) <= 7
    assert await count(gateway, "deployment_lease_lapsed", **place) == 0
    for each in hanging:
        each.cancel()
    answered = {"call": "LeaseBlocks", "outcome": "answered"}
    assert await count(gateway, "coordination_calls_total", **answered) > 0
    assert await count(gateway, "replicas") == 1


async def test_a_store_that_is_away_is_counted_shown_and_logged(
    start_gateway: StartGateway,
    engine: MockEngine,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    gateway = await start_gateway(engine, redis_url=f"unix://{tmp_path}/nothing.sock")
    async with asyncio.timeout(20):
        while not await count(gateway, "degraded"):  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    failed = {"call": "LeaseBlocks", "outcome": "failed"}
    assert await count(gateway, "coordination_calls_total", **failed) > 0
    await eventually(lambda: "the coordination store does not answer" in caplog.text, 20)


async def test_a_wrong_password_of_redis_is_logged_and_shown_as_what_it_is(
    start_gateway: StartGateway,
    engine: MockEngine,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
):
    redis_server.command("CONFIG", "SET", "requirepass", "secret")
    gateway = await start_gateway(engine, redis_url=f"unix://:guess@{redis_server.socket}")
    await eventually(lambda: "the coordination store refuses: Redis says" in caplog.text, 20)
    said = next(r.getMessage() for r in caplog.records if "refuses: Redis" in r.getMessage())
    assert "WRONGPASS" in said
    assert "password in the Redis URL is wrong" in said
    view = await fleet(gateway)
    assert "WRONGPASS" in view["store_error"]
    show(view, Terminal(plain=True))
    shown = capsys.readouterr()
    assert "Coordination: Redis says WRONGPASS" in shown.out + shown.err


async def fleet(gateway: RunningGateway) -> dict[str, Any]:
    url = f"{gateway.control_url}/fleet"
    view: dict[str, Any] = (await gateway.client.get(url, headers=gateway.authorization())).json()
    return view
