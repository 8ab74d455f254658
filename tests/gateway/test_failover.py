"""Another deployment takes over until the first content has been sent, and never after it."""

from __future__ import annotations

import asyncio

import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES

SHORT = ClockLimits(connect=1, first_token=0.2, idle=0.2, tail=0.2, total=0.4)

BEFORE_THE_FIRST_TOKEN = [
    "status-500",
    "status-503",
    "status-429",
    "status-401",
    "status-404",
    "reset",
    "close",
    "not-http",
    "html",
    "garbage",
    "silence",
    "slow-first-5s",
    "cut-after-0",
    "reset-after-0",
    "end-after-0",
    "error-after-0",
    "malformed-at-1",
    "answer-0.no-finish",
]


@pytest.mark.parametrize("behaviour", BEFORE_THE_FIRST_TOKEN)
async def test_a_stream_that_fails_before_its_first_token_is_served_by_another_deployment(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, spare, clocks=SHORT)
    engine.behave(behaviour)
    streamed = await gateway.stream()
    assert streamed.status == 200
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.done
    assert streamed.error is None
    assert [c["delta"].get("role") for c in streamed.choices].count("assistant") == 1
    assert (len(engine.requests), len(spare.requests)) == (1, 1)


@pytest.mark.parametrize("behaviour", [*BEFORE_THE_FIRST_TOKEN, "cut-after-9", "end-after-9"])
async def test_a_whole_answer_that_fails_is_served_by_another_deployment(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, spare, clocks=SHORT)
    engine.behave(behaviour)
    response = await gateway.chat()
    assert response.status_code == 200
    assert response.json()["choices"][0]["message"]["content"] == expected_text(MESSAGES)
    assert (len(engine.requests), len(spare.requests)) == (1, 1)


@pytest.mark.parametrize(
    "behaviour", ["cut-after-1", "end-after-1", "error-after-1", "stall-after-1"]
)
async def test_nothing_is_repeated_once_content_has_been_sent(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, spare, clocks=SHORT)
    engine.behave(behaviour)
    # content may come within 1 ms; the fifth failure in a row would open the breaker
    for _ in range(1 if behaviour == "stall-after-1" else 4):
        streamed = await gateway.stream()
        assert streamed.text() == expected_text(MESSAGES, 1)
        assert streamed.error is not None
        assert not streamed.done
    assert spare.requests == []


@pytest.mark.parametrize("behaviour", ["status-400", "content-filter", "context-length"])
async def test_a_refusal_of_the_request_itself_is_not_tried_elsewhere(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, behaviour: str
):
    gateway = await start_gateway(engine, spare)
    engine.behave(behaviour)
    assert (await gateway.chat()).status_code == 400
    assert (await gateway.chat(stream=True)).status_code == 400
    assert spare.requests == []


async def test_a_deployment_is_tried_again_only_after_every_other_and_four_tries_are_the_most(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-500")
    spare.behave("reset")
    assert (await gateway.chat()).status_code == 502
    assert (len(engine.requests), len(spare.requests)) == (2, 2)


async def test_a_failure_says_more_than_a_full_deployment(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-503.retry-after-9")
    spare.behave("status-500")
    response = await gateway.chat()
    assert response.json()["error"]["code"] == "upstream_failed"


async def test_of_full_deployments_the_one_that_frees_first_says_when_to_come_back(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-429.retry-after-9")
    spare.behave("status-503.retry-after-2")
    response = await gateway.chat()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "2"


async def test_an_attempt_is_given_up_before_the_next_begins(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, clocks=SHORT)
    engine.behave("silence")
    spare.behave("pace-10ms")
    await gateway.stream()
    assert engine.connections == set()


async def test_a_deployment_that_cannot_honour_a_parameter_is_passed_over(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, kinds=["openai", "vllm"])
    for stream in (False, True):
        assert (await gateway.chat(min_p=0.1, stream=stream)).status_code == 200
    assert (len(engine.requests), len(spare.requests)) == (0, 2)


async def test_requests_go_where_fewer_are_in_flight(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("slow-first-200ms")
    spare.behave("slow-first-200ms")
    await asyncio.gather(*(gateway.chat() for _ in range(8)))
    assert (len(engine.requests), len(spare.requests)) == (4, 4)
