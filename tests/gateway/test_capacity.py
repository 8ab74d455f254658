"""What does not fit is refused at once, with the time to come back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .running import MODEL, deployment, eventually, running
from .scripted_engine import ScriptedEngine, answer


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_request_beyond_the_slots_is_refused_at_once_with_retry_after(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, slots=2)
    engine.behave("slow-first-300ms")
    held = [asyncio.ensure_future(gateway.chat()) for _ in range(2)]
    await eventually(lambda: len(engine.requests) == 2)
    refused = await gateway.chat(stream=stream)
    assert not any(each.done() for each in held)  # it did not wait for a slot
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "capacity_exhausted"
    assert refused.json()["error"]["metadata"]["error_type"] == "provider_overloaded"
    assert {response.status_code for response in await asyncio.gather(*held)} == {200}
    assert len(engine.requests) == 2
    assert (await gateway.chat()).status_code == 200


async def test_who_only_one_deployment_can_serve_waits_for_that_one(
    tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    chats_only = deployment(1, spare.base_url, routes=frozenset({"chat/completions"}))
    engine.behave("slow-first-100ms")
    async with running(tmp_path, [deployment(0, engine.base_url, slots=1), chats_only]) as gateway:
        body = {"model": MODEL, "prompt": "Go on.", "max_tokens": 3}
        for _ in range(3):  # so that it is known how long a slot is held
            assert (await gateway.post("/completions", body)).status_code == 200
        answers = await asyncio.gather(*(gateway.post("/completions", body) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    assert spare.requests == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_engines_retry_after_is_passed_on(
    start_gateway: StartGateway, engine: MockEngine, status: int, stream: bool
):
    gateway = await start_gateway(engine)
    engine.behave(f"status-{status}.retry-after-17")
    response = await gateway.chat(stream=stream)
    assert response.status_code == 503
    assert response.headers["retry-after"] == "17"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("retry-after: Wed, 21 Oct 2099 07:28:00 GMT", 3600),
        ("retry-after: Wed, 21 Oct 1999 07:28:00 GMT", 1),
        ("retry-after: Wed, 99 Oct 2099 07:28:00 GMT", 1),
        ("retry-after: inf", 1),
        ("retry-after: -5", 1),
        ("retry-after: nan", 1),
        ("retry-after: 99999999999999999999999", 3600),
        ("retry-after: 0", 1),
        ("x-nothing: 1", 1),
    ],
)
async def test_a_strange_retry_after_is_a_sane_one(
    start_gateway: StartGateway, header: str, seconds: int
):
    async with ScriptedEngine([answer({}, 503, header)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == str(seconds)


async def test_who_finds_one_deployment_gone_and_the_other_full_is_told_of_capacity(
    tmp_path: Path, engine: MockEngine
):
    engine.behave("pace-20ms.answer-500")
    fleet = [deployment(0, "http://127.0.0.1:1/v1"), deployment(1, engine.base_url, slots=1)]
    async with running(tmp_path, fleet) as gateway:
        long = asyncio.ensure_future(gateway.stream())
        await eventually(lambda: bool(engine.requests))
        response = await gateway.chat()
        long.cancel()
    assert (response.status_code, response.json()["error"]["code"]) == (503, "capacity_exhausted")
    assert int(response.headers["retry-after"]) >= 1
