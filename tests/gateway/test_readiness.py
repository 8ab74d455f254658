"""Active checks and canaries, against engines that say one thing and do another."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import pytest

from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.domain.models import Deployment, HealthCheck
from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.canary import Canaries, canary_request
from prime_inference.gateway.readiness import HealthChecks, readiness
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.health import Readiness
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.runner import Runner
from prime_inference.reliability.settings import BreakerSettings, Settings
from prime_inference.reliability.slots import Slot

from .running import MODEL, deployment, eventually, models
from .scripted_engine import answer

ANSWER_SECONDS = 0.3


@asynccontextmanager
async def saying(replies: dict[str, bytes | None]) -> AsyncIterator[str]:
    """A server that answers each path with some bytes, or not at all; its base URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
        reply = replies.get(path, answer({}, 404))
        if reply is None:
            await reader.read(-1)
        else:
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


def at(base_url: str, health: HealthCheck, **fields: Any) -> Deployment:
    return deployment(0, base_url, health=health, **fields)


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (answer(b"", 200), Readiness.READY),
        (answer({"error": {"message": "Loading model"}}, 503), Readiness.NOT_READY),
        (answer(b"", 404), Readiness.NOT_READY),
        (b"not http at all\r\n\r\n", Readiness.UNREACHABLE),
        (None, Readiness.SILENT),
    ],
)
async def test_health_is_asked_beside_the_api(
    kind: HealthCheck, reply: bytes | None, found: Readiness
):
    async with saying({"/health": reply}) as base_url:
        assert await readiness(at(base_url, kind), ANSWER_SECONDS) is found


async def test_nobody_there_is_unreachable():
    async with saying({}) as base_url:
        pass
    assert await readiness(at(base_url, "vllm"), ANSWER_SECONDS) is Readiness.UNREACHABLE


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (answer({"ready": True, "namespaces": {}}), Readiness.READY),
        (answer({"ready": False}), Readiness.NOT_READY),
        (answer(b""), Readiness.NOT_READY),
        (answer({}, 404), Readiness.NOT_READY),
    ],
)
async def test_a_dynamo_frontend_is_asked_for_the_model_since_its_health_lies(
    reply: bytes, found: Readiness
):
    replies: dict[str, bytes | None] = {
        "/health": answer({"status": "healthy"}),
        "/v1/models/acme%2Ftiny/ready": reply,
    }
    async with saying(replies) as base_url:
        asked = at(base_url, "dynamo", upstream_model="acme/tiny")
        assert await readiness(asked, ANSWER_SECONDS) is found


def guarded(deployments: list[Deployment], settings: Settings | None = None) -> Guard:
    guard = Guard("r1", settings or Settings(), time.monotonic, Random(1), canary=True)
    guard.configure(deployments)
    return guard


async def leased(guard: Guard) -> asyncio.Task[None]:
    """Lease slots, until what is returned is cancelled."""
    store = MemoryCoordination(time.monotonic)
    running = asyncio.create_task(Runner(guard, store, time.monotonic).run())
    await eventually(lambda: all(status.leased for status in guard.status()), 10)
    return running


async def test_a_deployment_that_is_not_ready_is_offered_last_until_it_is():
    replies: dict[str, bytes | None] = {"/health": answer(b"", 503)}
    async with saying(replies) as base_url, MockEngine() as engine:
        fleet = [at(base_url, "vllm"), deployment(1, engine.base_url, health="none")]
        guard = guarded(fleet)
        checks = HealthChecks(MemoryCatalog(models(), fleet), guard, Random(1))
        await checks.look()
        assert set(guard.candidates(MODEL)) == {"engine-0", "engine-1"}
        await checks.look()
        assert guard.candidates(MODEL) == ["engine-1"]
        assert guard.down_deployments().keys() == {"engine-0"}
        assert checks.looks == {("engine-0", Readiness.NOT_READY): 2}
        replies["/health"] = answer(b"")
        await checks.look()
        assert set(guard.candidates(MODEL)) == {"engine-0", "engine-1"}
        assert guard.down_deployments() == {}


async def test_checks_never_take_the_last_deployment_away():
    async with saying({}) as base_url:
        fleet = [at(base_url, "vllm")]
        guard = guarded(fleet)
        checks = HealthChecks(MemoryCatalog(models(), fleet), guard, Random(1))
        for _ in range(3):
            await checks.look()
        assert guard.status()[0].healthy is False
        assert guard.candidates(MODEL) == ["engine-0"]


@pytest.mark.parametrize("health", ["vllm", "none"])
async def test_who_turns_everybody_away_is_unhealthy_until_he_does_not(health: HealthCheck):
    replies: dict[str, bytes | None] = {
        "/health": answer(b""),
        "/v1/chat/completions": answer({}, 401),
    }
    async with saying(replies) as base_url:
        fleet = [at(base_url, health), deployment(1, base_url, health="none")]
        guard, catalog = guarded(fleet), MemoryCatalog(models(), fleet)
        upstreams = Upstreams(catalog, time.monotonic)
        checks = HealthChecks(catalog, guard, Random(1), upstreams=upstreams)
        suspect, _ = upstreams.serving(MODEL)
        leasing = await leased(guard)
        await checks.look()
        assert ("engine-0", Readiness.REFUSING) not in checks.looks  # nobody asked it for a reason
        suspect.refusals += 1  # a client's request was turned away
        await checks.look()
        await checks.look()
        assert guard.candidates(MODEL) == ["engine-1"]
        replies["/v1/chat/completions"] = answer({"choices": [{}]})
        await checks.look()
        assert set(guard.candidates(MODEL)) == {"engine-0", "engine-1"}
        leasing.cancel()
        upstreams.close()


async def test_who_turns_one_client_away_stays_healthy():
    replies: dict[str, bytes | None] = {
        "/health": answer(b""),
        "/v1/chat/completions": answer({"choices": [{}]}),
    }
    async with saying(replies) as base_url:
        fleet = [at(base_url, "vllm")]
        guard, catalog = guarded(fleet), MemoryCatalog(models(), fleet)
        upstreams = Upstreams(catalog, time.monotonic)
        checks = HealthChecks(catalog, guard, Random(1), upstreams=upstreams)
        (suspect,) = upstreams.serving(MODEL)
        leasing = await leased(guard)
        for _ in range(3):
            suspect.refusals += 1
            await checks.look()
        assert checks.looks == {("engine-0", Readiness.READY): 3}
        leasing.cancel()
        upstreams.close()


async def test_checks_go_on_for_what_joins_and_forget_what_leaves():
    async with saying({}) as base_url:
        catalog = MemoryCatalog(models(), [])
        guard = guarded([])
        checks = HealthChecks(catalog, guard, Random(1), check_seconds=0.02)
        running = asyncio.ensure_future(checks.run())
        joined = [at(base_url, "vllm"), deployment(1, base_url)]
        guard.configure(joined)
        catalog.replace(models(), joined)
        await eventually(lambda: not guard.status()[0].healthy, 10)
        assert guard.status()[1].healthy  # nobody asks it
        catalog.replace(models(), [])
        await eventually(lambda: not checks.looks, 10)
        running.cancel()


# -- canaries


@asynccontextmanager
async def probing(engine: MockEngine, spare: MockEngine) -> AsyncIterator[tuple[Guard, Canaries]]:
    """A guard whose ejected deployments are probed by canaries, soon after they were ejected."""
    fleet = [deployment(0, engine.base_url), deployment(1, spare.base_url)]
    guard = guarded(fleet, Settings(BreakerSettings(open_s=0.1)))
    upstreams = Upstreams(MemoryCatalog(models(), fleet), time.monotonic)
    upstreams.serving(MODEL)
    canaries = Canaries(upstreams, ANSWER_SECONDS)
    store = MemoryCoordination(time.monotonic)
    running = asyncio.ensure_future(Runner(guard, store, time.monotonic, canaries.send).run())
    await eventually(lambda: all(status.leased for status in guard.status()), 10)
    yield guard, canaries
    running.cancel()
    upstreams.close()


def eject(guard: Guard, name: str) -> None:
    for _ in range(5):
        slot = guard.admit(name)
        assert isinstance(slot, Slot)
        with slot:
            slot.record(Outcome.FAILED)
    assert guard.is_ejected(name)


async def test_one_token_brings_an_ejected_deployment_back(engine: MockEngine, spare: MockEngine):
    async with probing(engine, spare) as (guard, canaries):
        eject(guard, "engine-0")
        await eventually(lambda: not guard.is_ejected("engine-0"), 20)
        assert canaries.sent[("engine-0", Outcome.ANSWERED)] == 2
        assert [json.loads(seen.body)["max_tokens"] for seen in engine.requests] == [1, 1]
        assert spare.requests == []


@pytest.mark.parametrize("behaviour", ["status-500", "silence", "html", "reset", "status-404"])
async def test_a_canary_that_is_not_answered_leaves_it_ejected(
    engine: MockEngine, spare: MockEngine, behaviour: str
):
    engine.behave(behaviour)
    async with probing(engine, spare) as (guard, canaries):
        eject(guard, "engine-0")
        await eventually(lambda: canaries.sent.get(("engine-0", Outcome.FAILED), 0) >= 2, 20)
        assert guard.is_ejected("engine-0")
        # the next canary may be on its way already
        await eventually(lambda: all(status.in_flight == 0 for status in guard.status()), 10)


async def test_a_canary_that_finds_a_full_engine_tells_nothing(
    engine: MockEngine, spare: MockEngine
):
    engine.behave("status-429")
    async with probing(engine, spare) as (guard, canaries):
        eject(guard, "engine-0")
        await eventually(lambda: ("engine-0", Outcome.NEUTRAL) in canaries.sent, 20)
        assert guard.is_ejected("engine-0")


@pytest.mark.parametrize("route", ["chat/completions", "completions", "embeddings"])
async def test_a_canary_is_a_request_that_the_deployment_serves(engine: MockEngine, route: str):
    path, body = canary_request(deployment(0, engine.base_url, routes=frozenset({route})))
    assert path == route
    async with httpx.AsyncClient(trust_env=False) as client:
        reply = await client.post(f"{engine.base_url}/{path}", content=body)
    assert reply.status_code == 200
