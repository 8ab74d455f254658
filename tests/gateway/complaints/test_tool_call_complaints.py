"""Tool calls in streams and their finish reasons; see the package for the list."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine
from tests.gateway.conftest import StartGateway
from tests.gateway.running import RunningGateway, Streamed
from tests.gateway.scripted_engine import DONE, ScriptedEngine, answer, delta, scripted, tool_delta

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
    for name in ("weather", "news", "maps")
]


def opening(index: int | None, identity: str, name: str, arguments: str = "") -> dict[str, Any]:
    call: dict[str, Any] = {
        "id": identity,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }
    return call if index is None else {"index": index, **call}


def piece(index: int | None, arguments: str) -> dict[str, Any]:
    call: dict[str, Any] = {"function": {"arguments": arguments}}
    return call if index is None else {"index": index, **call}


def calls_of(streamed: Streamed, choice: int = 0) -> list[tuple[str, str, str]]:
    """Tool calls as a client puts them together: id, name, arguments, by index."""
    calls: dict[int, dict[str, str]] = {}
    for each in streamed.choices:
        for call in each["delta"].get("tool_calls", []) if each["index"] == choice else []:
            known = calls.setdefault(call["index"], {"id": "", "name": "", "arguments": ""})
            known["id"] += call.get("id") or ""
            known["name"] += call["function"].get("name") or ""
            known["arguments"] += call["function"].get("arguments") or ""
    assert list(calls) == list(range(len(calls)))
    return [(call["id"], call["name"], call["arguments"]) for call in calls.values()]


TWO_CALLS = [("call_a", "weather", '{"a":1}'), ("call_b", "news", '{"b":2}')]


@pytest.mark.parametrize("indices", [(0, 0), (None, None), (0, 1), (3, 7), (1, 0)])
async def test_parallel_calls_get_indices_of_their_own(
    start_gateway: StartGateway, indices: tuple[int | None, int | None]
):
    """ai-dynamo/dynamo#4723, BerriAI/litellm#21331, #33678, #14579: index 0 for all."""
    first, second = indices
    async with scripted(
        tool_delta(opening(first, "call_a", "weather")),
        tool_delta(piece(first, '{"a"')),
        tool_delta(piece(first, ":1}")),
        tool_delta(opening(second, "call_b", "news", '{"b"')),
        tool_delta(piece(second, ":2}")),
        delta("tool_calls"),
        DONE,
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert calls_of(streamed) == TWO_CALLS


async def test_calls_whose_id_comes_with_every_piece_are_not_torn_apart(
    start_gateway: StartGateway,
):
    """BerriAI/litellm#16194: the index was reset with every chunk."""
    async with scripted(
        tool_delta(opening(0, "call_a", "weather", '{"a"')),
        tool_delta({"index": 0, "id": "call_a", "function": {"arguments": ":1}"}}),
        tool_delta(opening(0, "call_b", "news", '{"b"')),
        tool_delta({"index": 0, "id": "call_b", "function": {"arguments": ":2}"}}),
        delta("tool_calls"),
        DONE,
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert calls_of(streamed) == TWO_CALLS


async def test_calls_may_come_whole_in_one_chunk(start_gateway: StartGateway):
    """BerriAI/litellm#21331: their arguments were run together, {..}{..}."""
    async with scripted(
        tool_delta(
            opening(0, "call_a", "weather", '{"a":1}'), opening(0, "call_b", "news", '{"b":2}')
        ),
        delta("tool_calls"),
        DONE,
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert calls_of(streamed) == TWO_CALLS


async def test_calls_of_interleaved_pieces_are_kept_apart(start_gateway: StartGateway):
    """BerriAI/litellm#33678."""
    async with scripted(
        tool_delta(opening(0, "call_a", "weather"), opening(1, "call_b", "news")),
        tool_delta(piece(1, '{"b"')),
        tool_delta(piece(0, '{"a"'), piece(1, ":2}")),
        tool_delta(piece(0, ":1}")),
        delta("tool_calls"),
        DONE,
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert calls_of(streamed) == TWO_CALLS


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_calls_of_an_engine_all_arrive(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    """maximhq/bifrost PR 3441: only the first was translated."""
    engine.behave("calls-3")
    if stream:
        streamed = await gateway.stream(tools=TOOLS, tool_choice="auto")
        names = [name for _, name, _ in calls_of(streamed)]
        arguments = [text for _, _, text in calls_of(streamed)]
    else:
        message = (await gateway.chat(tools=TOOLS)).json()["choices"][0]["message"]
        names = [call["function"]["name"] for call in message["tool_calls"]]
        arguments = [call["function"]["arguments"] for call in message["tool_calls"]]
    assert names == ["weather", "news", "maps"]
    assert all(text.startswith("{") and text.endswith("}") for text in arguments)


async def test_a_stream_with_tool_calls_does_not_finish_with_stop(start_gateway: StartGateway):
    """BerriAI/litellm#21041, #22900, #12862, #35663."""
    async with scripted(
        tool_delta(opening(0, "call_a", "weather", "{}")), delta("stop"), DONE
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert streamed.finish_reasons()[-1] == "tool_calls"


async def test_a_whole_answer_with_tool_calls_does_not_finish_with_stop(
    start_gateway: StartGateway,
):
    """BerriAI/litellm#21041."""
    message = {"role": "assistant", "content": None, "tool_calls": [opening(None, "a", "news")]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    async with ScriptedEngine([answer(body)]) as engine:
        gateway = await start_gateway(engine.base_url)
        response = await gateway.chat(tools=TOOLS)
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


async def test_calls_cut_off_by_the_length_limit_still_say_length(start_gateway: StartGateway):
    """The opposite mistake: an argument that was cut must not look whole."""
    async with scripted(
        tool_delta(opening(0, "call_a", "weather", '{"ci')), delta("length"), DONE
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS)
    assert streamed.finish_reasons()[-1] == "length"


async def test_calls_of_two_choices_are_counted_apart(start_gateway: StartGateway):
    """BerriAI/litellm#33678: the state of a stream is kept by choice."""
    async with scripted(
        delta(index=0, tool_calls=[opening(0, "call_a", "weather", "{}")]),
        delta(index=1, tool_calls=[opening(0, "call_b", "news", "{}")]),
        delta("tool_calls", 0),
        delta("tool_calls", 1),
        DONE,
    ) as engine:
        gateway = await start_gateway(engine.base_url)
        streamed = await gateway.stream(tools=TOOLS, n=2)
    assert calls_of(streamed, 0) == [("call_a", "weather", "{}")]
    assert calls_of(streamed, 1) == [("call_b", "news", "{}")]
