"""A call that a length limit or a stop string cut is the caller's doing, and never content."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.domain.models import GatewayParser
from prime_inference.engines.mock import MockEngine
from prime_inference.toolcalls.format import format_named, load

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway
from .test_tool_repair import TOOLS, answered, names

WEATHER = {"tools": TOOLS[:1], "tool_choice": "required"}
CALLS = [("weather", {"city": "Rio", "days": 3}), ("weather", {"city": "São Paulo", "days": 12})]


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def counted(gateway: RunningGateway) -> dict[str, float]:
    return {
        "answers": await gateway.metric("prime_tool_call_answers_total"),
        "errors": await gateway.metric("prime_tool_call_errors_total"),
        "missing": await gateway.metric("prime_tool_calls_missing_total"),
        "length": await gateway.metric("prime_tool_calls_cut_total", by="length"),
        "stop": await gateway.metric("prime_tool_calls_cut_total", by="stop"),
    }


NOTHING = {"answers": 0, "errors": 0, "missing": 0, "length": 0, "stop": 0}


@pytest.mark.parametrize("told", ["", "stop-reason"])
async def test_a_stop_string_inside_a_call_is_its_own_outcome(
    gateway: RunningGateway, engine: MockEngine, stream: bool, told: str
):
    engine.behave(told or "answer-3")
    choice = await answered(gateway, stream, **WEATHER, stop=["days"])
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"] == '{"city":"word","'
    assert choice["finish_reason"] == "stop"
    assert await counted(gateway) == {**NOTHING, "stop": 1}


async def test_a_model_that_breaks_a_call_by_itself_is_not_excused_by_stop_strings(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("broken-arguments.stop-reason")  # the engine says that it met none
    choice = await answered(gateway, stream, **WEATHER, stop=["nowhere"])
    assert choice["finish_reason"] == "tool_calls"
    assert await counted(gateway) == {**NOTHING, "answers": 1, "errors": 1}


async def test_whole_calls_before_a_stop_string_are_calls(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    choice = await answered(gateway, stream, **WEATHER, stop=["nowhere"])
    assert names(choice) == ["weather"]
    assert choice["finish_reason"] == "tool_calls"
    assert await counted(gateway) == {**NOTHING, "answers": 1}


async def test_a_stop_string_before_a_call_that_had_to_come_is_no_missing_call(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    engine.say('<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>')
    choice = await answered(gateway, stream, **WEATHER, stop=["name"])
    assert not choice["message"].get("tool_calls")
    assert not choice["message"]["content"]
    assert choice["finish_reason"] == "stop"
    assert await counted(gateway) == {**NOTHING, "stop": 1}


@pytest.mark.parametrize("told", ["", "stop-reason"])
async def test_text_that_ends_like_a_marker_is_the_models_where_it_ended_by_itself(
    start_gateway: StartGateway, engine: MockEngine, stream: bool, told: str
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    engine.behave(told or "answer-3")
    engine.say("so 1 < 2, and 3 <")
    choice = await answered(gateway, stream, tools=TOOLS, stop=["nowhere"])
    assert choice["message"]["content"] == "so 1 < 2, and 3 <"


async def test_a_message_whose_call_a_stop_sequence_cut_has_no_input(
    gateway: RunningGateway, engine: MockEngine
):
    schema = TOOLS[0]["function"]["parameters"]
    body = {
        "model": MODEL, "max_tokens": 99, "messages": MESSAGES, "stop_sequences": ["days"],
        "tools": [{"name": "weather", "input_schema": schema}], "tool_choice": {"type": "any"},
    }  # fmt: skip
    message = (await gateway.post("/messages", body)).json()
    assert message["stop_reason"] == "stop_sequence"  # nobody takes it for a call to run
    assert [block["input"] for block in message["content"]] == [{}]
    streamed = await gateway.post("/messages", {**body, "stream": True})
    assert '"stop_reason":"stop_sequence"' in streamed.text
    assert "message_stop" in streamed.text
    assert await counted(gateway) == {**NOTHING, "stop": 2}


@pytest.mark.parametrize("form", sorted(load()))
async def test_half_a_call_is_no_content_wherever_the_limit_cuts_it(
    start_gateway: StartGateway, engine: MockEngine, form: str
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser(form))
    text = "I will look. " + format_named(form).render_all(CALLS)
    tokens = -(-len(text) // 4)  # the mock's tokens of said text
    for limit in range(4, tokens, 3):
        engine.say(text)
        choice = await answered(gateway, limit % 2 == 0, tools=TOOLS[:1], max_tokens=limit)
        assert choice["finish_reason"] == "length"
        assert "I will look.".startswith((choice["message"]["content"] or "").rstrip())
        calls: list[dict[str, Any]] = choice["message"].get("tool_calls") or []
        assert all(call["function"]["name"] == "weather" for call in calls)
    assert (await counted(gateway))["errors"] == 0
    assert (await counted(gateway))["length"] > 3
