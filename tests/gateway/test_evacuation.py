"""Requests that wait on a deployment that was found down go to another one at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.reliability import downtime

from .conftest import StartGateway
from .followed_file import FollowedFile, started
from .running import MESSAGES, MODEL, RunningGateway, chat, eventually

ENGINES = ("engine-0", "engine-1")
WAYS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


class Watcher:
    """Says which deployments are down, as active checks and the fleet's list do."""

    live: LiveFleet

    async def follow(self, live: LiveFleet) -> None:
        self.live = live
        await asyncio.Event().wait()

    def say(self, *down: str) -> None:
        self.live.said_down(down)


async def text_of(gateway: RunningGateway, stream: bool, **fields: Any) -> str:
    """An answer that is whole: what it says."""
    if stream:
        streamed = await gateway.stream(**fields)
        assert streamed.error is None
        assert streamed.done
        return streamed.text()
    answer = await gateway.chat(**fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def deployments(gateway: RunningGateway) -> list[dict[str, Any]]:
    answer = await gateway.client.get(
        f"{gateway.control_url}/fleet", headers=gateway.authorization()
    )
    return list(answer.json()["deployments"])


async def asked(engine: MockEngine, count: int = 1) -> None:
    await eventually(lambda: len(engine.requests) >= count, 10)


@WAYS
async def test_who_waits_is_freed_and_nobody_is_blamed_a_second_time(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, stream: bool
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("silence")
    waiting = asyncio.ensure_future(text_of(gateway, stream))
    await asked(engine)
    watcher.say("engine-0")
    assert await waiting == expected_text(MESSAGES)
    await engine.quiet()
    assert [seen.outcome for seen in engine.requests] == ["client left"]
    (generation,) = await gateway.generations(1)
    assert (generation["outcome"], generation["deployment"]) == ("complete", "engine-1")
    first, second = (await deployments(gateway))[:2]
    assert (first["failed"], first["breaker"], first["state"]) == (0, "closed", "unhealthy")
    assert (first["in_flight"], second["in_flight"], second["answered"]) == (0, 0, 1)
    assert await gateway.metric("prime_moved_requests_total", deployment="engine-0") == 1
    assert await gateway.metric("prime_retries_total", model=MODEL, decision="free") == 1


async def test_all_who_wait_are_freed(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("silence")
    spare.behave("silence")
    waiting = [asyncio.ensure_future(text_of(gateway, bool(n % 2))) for n in range(12)]
    await eventually(lambda: len(engine.requests) + len(spare.requests) == 12, 10)
    assert engine.requests
    spare.behave("")
    watcher.say("engine-0")
    await eventually(lambda: len(spare.requests) == 12, 10)  # those of `engine` as well
    engine.behave("")
    watcher.say("engine-1")  # where the others have waited since before
    assert await asyncio.gather(*waiting) == [expected_text(MESSAGES)] * 12


async def test_a_stream_whose_tokens_come_is_not_cut(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(downtime, "SILENT_S", 1.0)
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("pace-20ms")
    streaming = asyncio.ensure_future(text_of(gateway, True, max_tokens=64))
    await asked(engine)
    watcher.say("engine-0")
    assert await streaming == expected_text(MESSAGES, 64)
    assert (len(engine.requests), len(spare.requests)) == (1, 0)


async def test_a_stream_that_is_silent_since_goes_on_elsewhere(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(downtime, "SILENT_S", 0.1)
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("stall-after-10")
    streaming = asyncio.ensure_future(text_of(gateway, True))
    await asked(engine)
    await asyncio.sleep(0.5)
    assert not streaming.done()
    watcher.say("engine-0")
    assert await streaming == expected_text(MESSAGES)
    assert [seen.path for seen in spare.requests] == ["/v1/completions"]
    (generation,) = await gateway.generations(1)
    assert generation["continuations"] == 1
    assert (await deployments(gateway))[0]["failed"] == 0


async def test_an_answer_that_nobody_could_go_on_with_is_left_where_it_is(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(downtime, "SILENT_S", 0.1)
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("stall-after-10.stall-2s")
    streaming = asyncio.ensure_future(text_of(gateway, True, n=2))
    await asked(engine)
    watcher.say("engine-0")
    await streaming
    assert (len(engine.requests), len(spare.requests)) == (1, 0)


@WAYS
async def test_who_finds_no_slot_elsewhere_waits_until_there_is_one(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, stream: bool
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, slots=1, follow=watcher.follow)
    engine.behave("silence")
    spare.behave("slow-head-1s")
    waiting = [asyncio.ensure_future(text_of(gateway, stream)) for _ in ENGINES]
    await asked(engine)
    await asked(spare)
    watcher.say("engine-0")
    assert await asyncio.gather(*waiting) == [expected_text(MESSAGES)] * 2
    assert (len(engine.requests), len(spare.requests)) == (1, 2)
    assert [one["in_flight"] for one in (await deployments(gateway))[:2]] == [0, 0]


@WAYS
async def test_with_all_deployments_down_a_request_waits_for_the_first_that_is_back(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, stream: bool
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("silence")
    waiting = asyncio.ensure_future(text_of(gateway, stream))
    await asked(engine)
    watcher.say(*ENGINES)
    await asyncio.sleep(0.6)
    assert not waiting.done()
    assert spare.requests == []
    watcher.say("engine-0")
    assert await waiting == expected_text(MESSAGES)
    assert len(spare.requests) == 1


async def test_a_verdict_that_is_reversed_leaves_nothing_behind(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    engine.behave("slow-head-1s")
    waiting = asyncio.ensure_future(text_of(gateway, True))
    await asked(engine)
    watcher.say(*ENGINES)
    await asyncio.sleep(0.4)
    watcher.say()
    assert await waiting == expected_text(MESSAGES)
    assert (len(engine.requests), len(spare.requests)) == (1, 0)


async def test_a_drain_is_no_verdict(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one", "two")
    gateway = await started(start_gateway, fleet)
    for each in (engine, spare):
        each.behave("slow-head-1s")
    waiting = asyncio.ensure_future(text_of(gateway, True))
    await eventually(lambda: bool(engine.requests or spare.requests), 10)
    here, other = ("one", "two") if engine.requests else ("two", "one")
    fleet.write(other)
    await fleet.taken(1)
    assert await waiting == expected_text(MESSAGES)
    assert len(engine.requests) + len(spare.requests) == 1, here


async def test_one_that_is_drained_and_down_is_left(
    start_gateway: StartGateway, tmp_path: Path, engine: MockEngine, spare: MockEngine
):
    fleet = FollowedFile(tmp_path, one=engine, two=spare)
    fleet.write("one")
    gateway = await started(start_gateway, fleet)
    fleet.write("one", "two")
    await fleet.taken(1)
    for each in (engine, spare):
        each.behave("silence")
    waiting = asyncio.ensure_future(text_of(gateway, True))
    await eventually(lambda: bool(engine.requests or spare.requests), 10)
    here, other = ("one", "two") if engine.requests else ("two", "one")
    assert fleet.live is not None
    for each in (engine, spare):
        each.behave("")
    fleet.write(other)
    await fleet.taken(2)
    fleet.live.said_down([here])
    assert await waiting == expected_text(MESSAGES)
    assert (len(engine.requests), len(spare.requests)) == (1, 1)


async def test_a_client_that_leaves_as_it_is_freed_leaves_no_slot_taken(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    for each in (engine, spare):
        each.behave("silence")
    waiting = [asyncio.ensure_future(text_of(gateway, True)) for _ in range(10)]
    await eventually(lambda: len(engine.requests) + len(spare.requests) == 10, 10)
    watcher.say("engine-0")
    for number, task in enumerate(waiting):
        await asyncio.sleep(0.06)
        task.cancel()
        watcher.say(ENGINES[number % 2])
    await asyncio.wait(waiting)
    await engine.quiet()
    await spare.quiet()
    async with asyncio.timeout(10):
        while any(one["in_flight"] for one in await deployments(gateway)):
            pass


async def test_a_first_token_that_comes_with_the_verdict_is_one_answer_and_no_more(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """Verdicts all the time, answers all the time: each is whole, and billed once."""
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    for each in (engine, spare):
        each.behave("slow-head-250ms")
    asking = [asyncio.ensure_future(text_of(gateway, bool(n % 3))) for n in range(24)]
    for turn in itertools.count():
        _, pending = await asyncio.wait(asking, timeout=0.13)
        if not pending:
            break
        watcher.say(ENGINES[turn % 2])
    assert [task.result() for task in asking] == [expected_text(MESSAGES)] * 24
    generations = await gateway.generations(24)
    assert {one["outcome"] for one in generations} == {"complete"}
    assert sum(one["usage"]["completion_tokens"] for one in generations) == 24 * 64
    assert [one["in_flight"] for one in (await deployments(gateway))[:2]] == [0, 0]


async def test_a_request_in_vain_twice_moves_twice_and_no_more_than_its_tries(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    watcher = Watcher()
    gateway = await start_gateway(engine, spare, follow=watcher.follow)
    for each in (engine, spare):
        each.behave("silence")
    waiting = asyncio.ensure_future(gateway.client.post(
        gateway.url("/chat/completions"), json=chat(), headers=gateway.authorization()
    ))  # fmt: skip
    places: Sequence[MockEngine] = (engine, spare)
    for number in range(4):
        await asked(places[number % 2], number // 2 + 1)
        watcher.say(ENGINES[number % 2])
    await asyncio.sleep(0.6)
    assert not waiting.done()
    assert (len(engine.requests), len(spare.requests)) == (2, 2)
    waiting.cancel()
