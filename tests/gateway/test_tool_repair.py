"""Calls that an engine gets wrong, as the client is given them: streamed and whole alike."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine

from .running import RunningGateway

NAMES = ("weather", "news")
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city", "days"],
            },
        },
    }
    for name in NAMES
]
NAMED = {"type": "function", "function": {"name": "news"}}


async def answered(gateway: RunningGateway, stream: bool, **fields: Any) -> dict[str, Any]:
    """The one choice of an answer; a streamed one put together as clients do it."""
    fields = {"tools": TOOLS, **fields}
    if not stream:
        response = await gateway.chat(**fields)
        assert response.status_code == 200, response.text
        choice: dict[str, Any] = response.json()["choices"][0]
        return choice
    streamed = await gateway.stream(**fields)
    assert streamed.done
    calls: list[dict[str, Any]] = []
    for each in streamed.choices:
        for delta in each["delta"].get("tool_calls", []):
            if delta["index"] == len(calls):
                calls.append({"id": "", "type": "", "function": {"name": "", "arguments": ""}})
            call = calls[delta["index"]]
            call["id"] += delta.get("id", "")
            call["type"] += delta.get("type", "")
            for key, text in delta["function"].items():
                call["function"][key] += text
    message = {"content": streamed.text() or None, "tool_calls": calls}
    return {"message": message, "finish_reason": streamed.finish_reasons()[-1]}


def names(choice: dict[str, Any]) -> list[str]:
    return [call["function"]["name"] for call in choice["message"]["tool_calls"]]


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize(
    "behaviour",
    [
        "calls-2", "calls-2.finish-stop", "calls-2.no-ids", "calls-2.same-ids",
        "calls-2.no-indices", "calls-2.same-indices", "calls-2.repeat-names",
        "calls-2.object-arguments", "calls-2.no-ids.no-indices", "calls-2.no-ids.same-indices",
        "calls-2.same-ids.same-indices", "calls-2.same-ids.no-indices",
        "calls-2.repeat-names.same-indices",
    ],
)  # fmt: skip
async def test_calls_that_are_told_wrong_are_given_right(
    gateway: RunningGateway, engine: MockEngine, stream: bool, behaviour: str
):
    engine.behave(behaviour)
    choice = await answered(gateway, stream)
    calls = choice["message"]["tool_calls"]
    assert names(choice) == list(NAMES)
    assert [call["function"]["arguments"] for call in calls] == ['{"city":"word","days":0}'] * 2
    assert {call["type"] for call in calls} == {"function"}
    ids = [call["id"] for call in calls]
    assert all(ids)
    assert len(set(ids)) == 2
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "behaviour",
    [
        "calls-2.same-ids.same-indices", "calls-2.no-ids.no-indices",
        "calls-2.repeat-names.same-indices", "calls-2.repeat-names.no-indices",
    ],
)  # fmt: skip
async def test_two_calls_of_one_function_stay_two(
    gateway: RunningGateway, engine: MockEngine, stream: bool, behaviour: str
):
    engine.behave(behaviour)
    choice = await answered(gateway, stream, tools=TOOLS[:1])
    calls = choice["message"]["tool_calls"]
    assert names(choice) == ["weather"] * 2
    assert [call["function"]["arguments"] for call in calls] == ['{"city":"word","days":0}'] * 2
    assert len({call["id"] for call in calls}) == 2


async def test_arguments_left_empty_are_an_empty_object(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("calls-1.no-arguments")
    (call,) = (await answered(gateway, stream))["message"]["tool_calls"]
    assert call["function"]["arguments"] == "{}"


async def test_one_call_is_given_where_several_were_not_allowed(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("calls-2")
    choice = await answered(gateway, stream, parallel_tool_calls=False)
    assert names(choice) == ["weather"]


async def test_a_named_function_ends_with_stop_and_has_its_name(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("null-names")
    choice = await answered(gateway, stream, tool_choice=NAMED)
    assert names(choice) == ["news"]
    assert choice["finish_reason"] == "stop"


async def test_a_name_that_nobody_knows_is_empty_and_not_guessed(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("calls-1.null-names")
    assert names(await answered(gateway, stream)) == [""]
    assert await gateway.metric("prime_tool_call_errors_total", error="UnknownName") == 1


async def test_ids_differ_from_answer_to_answer(gateway: RunningGateway, engine: MockEngine):
    engine.behave("calls-1.no-ids")
    choices = [await answered(gateway, stream=False) for _ in range(3)]
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in choices}) == 3
