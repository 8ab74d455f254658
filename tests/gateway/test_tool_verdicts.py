"""What is counted of tool calls: by model and deployment, as the public rate is defined."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from prime_inference.domain.models import GatewayParser
from prime_inference.engines.mock import MockEngine

from .conftest import StartGateway
from .running import MODEL, RunningGateway

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
REFERENCE = {"$ref": "#/$defs/x0"}


async def rate(gateway: RunningGateway) -> Any:
    (endpoint,) = (await gateway.get(f"/models/{MODEL}/endpoints")).json()["data"]["endpoints"]
    return endpoint["tool_call_error_rate_last_2h"]


def schema(**properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def endless(depth: int = 40) -> dict[str, Any]:
    """A tool whose arguments take a validator two to the power of `depth` steps."""
    definitions: dict[str, Any] = {"x0": {"type": "integer"}}
    for level in range(1, depth + 1):
        below = {"$ref": f"#/$defs/x{level - 1}"}
        definitions[f"x{level}"] = {"anyOf": [below, {**below, "title": str(level)}]}
    tool = schema(a={"$ref": f"#/$defs/x{depth}"})
    tool["function"]["parameters"]["$defs"] = definitions
    return tool


async def judged(gateway: RunningGateway, count: int) -> None:
    """Return when so many answers have been judged."""
    async with asyncio.timeout(30):
        while await gateway.metric("prime_tool_call_answers_total") < count:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("calls-1", None),
        ("calls-1.broken-arguments", "InvalidJson"),
        ("calls-1.unknown-names", "UnknownName"),
        ("calls-1.wrong-arguments", "SchemaMismatch"),
    ],
)
async def test_each_wrong_call_is_counted_in_its_bucket(
    gateway: RunningGateway, engine: MockEngine, stream: bool, behaviour: str, error: str | None
):
    engine.behave(behaviour)
    if stream:
        assert (await gateway.stream(tools=[TOOL])).done
    else:
        assert (await gateway.chat(tools=[TOOL])).status_code == 200
    place = {"model": MODEL, "deployment": "engine-0"}
    assert await gateway.metric("prime_tool_call_answers_total", **place) == 1
    for bucket in ("InvalidJson", "UnknownName", "SchemaMismatch"):
        count = await gateway.metric("prime_tool_call_errors_total", **place, error=bucket)
        assert count == (bucket == error)
        assert (await rate(gateway))[bucket] == (100.0 if bucket == error else 0.0)
    assert (await rate(gateway))["total"] == (0.0 if error is None else 100.0)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_in_raw_text_with_more_than_its_format_has_a_place_for_is_counted(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    call = '{"name": "weather", "arguments": {"city": "x"}, "more": }'  # the arguments are whole
    engine.say(f"<tool_call>\n{call}\n</tool_call>")
    if stream:
        assert (await gateway.stream(tools=[TOOL])).done
    else:
        assert (await gateway.chat(tools=[TOOL])).status_code == 200
    assert await gateway.metric("prime_tool_call_errors_total", error="InvalidJson") == 1


async def test_an_answer_counts_once_however_many_of_its_calls_are_wrong(
    gateway: RunningGateway, engine: MockEngine
):
    engine.behave("calls-3.wrong-arguments.first-1")
    for _ in range(4):
        await gateway.chat(tools=[TOOL], tool_choice="required")
    assert await rate(gateway) == {
        "total": 25.0, "InvalidJson": 0.0, "UnknownName": 0.0, "SchemaMismatch": 25.0,
    }  # fmt: skip


async def test_the_public_rate_counts_what_finished_with_tool_calls(
    gateway: RunningGateway, engine: MockEngine
):
    assert await rate(gateway) is None
    await gateway.chat(tools=[TOOL])  # answers with text
    await gateway.chat(tools=[TOOL], tool_choice=NAMED)  # finishes with stop
    await gateway.chat(tools=[TOOL], tool_choice="required", max_tokens=2)  # with length
    assert await rate(gateway) is None
    # what the limit cut is no fault of the model's
    assert await gateway.metric("prime_tool_call_answers_total") == 1
    assert await gateway.metric("prime_tool_call_errors_total", error="InvalidJson") == 0


async def test_a_call_that_was_required_and_did_not_come_is_counted(
    gateway: RunningGateway, engine: MockEngine
):
    engine.say("I would rather not.")
    answer = (await gateway.chat(tools=[TOOL], tool_choice="required")).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert await gateway.metric("prime_tool_calls_missing_total", deployment="engine-0") == 1


async def test_deployments_are_counted_apart(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave("status-500")
    spare.behave("calls-1.wrong-arguments")
    await gateway.chat(tools=[TOOL])
    assert await gateway.metric("prime_tool_call_answers_total", deployment="engine-0") == 0
    assert await gateway.metric("prime_tool_call_errors_total", deployment="engine-1") == 1


async def test_no_request_without_tools_is_judged(gateway: RunningGateway, engine: MockEngine):
    await gateway.chat()
    assert await gateway.metric("prime_tool_call_answers_total") == 0


BROKEN_SCHEMAS: dict[str, Any] = {
    "a type that is none": {"type": "nonsense"},
    "a reference to nothing": {"$ref": "#/$defs/nothing"},
    "a pattern that is none": {"pattern": "("},
}


@pytest.mark.parametrize("name", BROKEN_SCHEMAS)
async def test_a_schema_that_cannot_be_read_counts_as_fulfilled(
    gateway: RunningGateway, engine: MockEngine, name: str
):
    engine.behave("calls-1")
    await gateway.chat(tools=[schema(a=BROKEN_SCHEMAS[name])])
    await judged(gateway, 1)
    assert (await rate(gateway))["total"] == 0.0


async def test_patterns_and_references_are_judged_as_well(
    gateway: RunningGateway, engine: MockEngine
):
    tool = schema(a={"type": "string", "pattern": "^[a-z]+$"}, b=REFERENCE)
    tool["function"]["parameters"]["$defs"] = {"x0": {"type": "integer"}}
    engine.behave("calls-1.wrong-arguments.first-1")
    for _ in range(2):
        await gateway.chat(tools=[tool], tool_choice="required")
    await judged(gateway, 2)
    assert await gateway.metric("prime_tool_call_errors_total", error="SchemaMismatch") >= 1
    assert await gateway.metric("prime_tool_calls_unjudged_total") == 0


async def test_a_schema_that_is_endless_work_holds_nobody_up(
    gateway: RunningGateway, engine: MockEngine
):
    """The event loop goes on serving, and the next answer is judged as ever."""
    engine.behave("calls-1")
    await gateway.chat(tools=[endless()])
    response = await gateway.chat(tools=[TOOL], tool_choice="required")
    assert response.status_code == 200
    assert await gateway.metric("prime_tool_call_answers_total") == 1  # the endless one goes on
    await judged(gateway, 2)
    assert await gateway.metric("prime_tool_calls_unjudged_total") == 1
    await gateway.chat(tools=[schema(a={"pattern": "^x"})], tool_choice="required")
    await judged(gateway, 3)
    assert await gateway.metric("prime_tool_calls_unjudged_total") == 1
