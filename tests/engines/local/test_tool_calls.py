"""Tool calls of the real model: valid wherever one must come, through the real gateway."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from benchmarks.toolcalls_local import ask, problem

from prime_inference import compose

from .test_behind_gateway import api, engine

__all__ = ["api", "engine"]  # fixtures

pytestmark = pytest.mark.asyncio(loop_scope="module")


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A tool whose arguments are bounded, so that no call can go on until the tokens end."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


COLOUR = {"type": "string", "pattern": "^#[0-9a-f]{6}$"}
TOOLS = [
    tool("weather", city={"type": "string", "maxLength": 12}, unit={"enum": ["C", "F", None]}),
    tool("paint", colour=COLOUR, size={"type": "integer", "minimum": 3, "maximum": 40}),
    tool("now"),
]
NAMED = {"type": "function", "function": {"name": "paint"}}


def body(choice: Any, **fields: Any) -> dict[str, Any]:
    return {
        "model": compose.DEFAULT_MODEL_ID,
        "messages": [{"role": "user", "content": "Paint it red."}],
        "tools": TOOLS,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 300,
        "stream": False,
        **fields,
    }


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_call_that_must_come_is_valid(api: httpx.AsyncClient, choice: Any, stream: bool):
    asked = body(choice, stream=stream)
    calls, finish = await ask(api, asked)
    assert problem(TOOLS, asked, calls) is None
    assert finish == ("tool_calls" if choice == "required" else "stop")


async def test_no_call_comes_where_none_is_wanted(api: httpx.AsyncClient):
    calls, _ = await ask(api, body("none", max_tokens=40))
    assert calls == []


async def test_a_conversation_goes_on_behind_a_call(api: httpx.AsyncClient):
    """The model decides: what it says is text or a call, and both are whole or cut off."""
    function = {"name": "paint", "arguments": '{"colour": "#ff0000", "size": 3}'}
    call = {"id": "a", "type": "function", "function": function}
    history = [
        {"role": "user", "content": "Paint it red."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "painted"},
    ]
    asked = body("auto", messages=history, max_tokens=60)
    response = await api.post("chat/completions", json=asked)
    choice = response.json()["choices"][0]
    message = choice["message"]
    assert message["content"] or message["tool_calls"]
    if choice["finish_reason"] == "tool_calls":
        assert all(
            json.loads(c["function"]["arguments"]) is not None for c in message["tool_calls"]
        )
