"""A quiet stream is kept open by comments, before its first token and in the middle."""

from __future__ import annotations

import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES


async def test_comments_keep_a_stream_open_before_its_first_token(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, keep_alive_seconds=0.1)
    engine.behave("slow-first-700ms")
    streamed = await gateway.stream()
    assert streamed.raw.startswith(b": keep-alive\n\n")
    assert 2 <= streamed.comments <= 7
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.done


async def test_comments_keep_a_stream_open_in_mid_answer(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, keep_alive_seconds=0.1)
    engine.behave("stall-after-3.stall-700ms")
    streamed = await gateway.stream()
    before, _, after = streamed.raw.partition(b": keep-alive\n\n")
    assert before.count(b'"content"') == 3
    assert b"[DONE]" in after
    assert 2 <= streamed.comments <= 7
    assert streamed.text() == expected_text(MESSAGES)


async def test_a_stream_that_is_not_quiet_has_no_comments(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, keep_alive_seconds=0.5)
    engine.behave("pace-20ms.answer-30")
    assert (await gateway.stream()).comments == 0


@pytest.mark.parametrize("behaviour", ["slow-head-500ms.status-500", "silence", "cut-after-0"])
async def test_a_failure_after_comments_is_told_in_band(
    start_gateway: StartGateway, engine: MockEngine, behaviour: str
):
    clocks = ClockLimits(first_token=0.6)
    gateway = await start_gateway(engine, keep_alive_seconds=0.1, clocks=clocks)
    engine.behave(f"{behaviour}.slow-first-500ms")
    streamed = await gateway.stream()
    assert streamed.status == 200
    assert streamed.comments >= 1
    assert streamed.error is not None
    assert not streamed.done


async def test_comments_are_no_content_another_deployment_may_still_take_over(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    clocks = ClockLimits(first_token=0.5)
    gateway = await start_gateway(engine, spare, keep_alive_seconds=0.1, clocks=clocks)
    engine.behave("silence")
    streamed = await gateway.stream()
    assert streamed.comments >= 1
    assert streamed.text() == expected_text(MESSAGES)
    assert streamed.done
    assert len(spare.requests) == 1


async def test_no_comments_come_when_the_answer_is_not_streamed(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, keep_alive_seconds=0.1)
    engine.behave("slow-first-400ms")
    response = await gateway.chat()
    assert response.json()["choices"][0]["message"]["content"] == expected_text(MESSAGES)
