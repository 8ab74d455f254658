"""Tools and choices as callers write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.toolcalls.tools import (
    AUTO,
    ToolChoice,
    read_choice,
    read_tools,
    tools_from_json,
)

NESTED = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}}
TWO = read_tools([NESTED, {"type": "function", "name": "g"}])


@pytest.mark.parametrize("raw", [NESTED, FLAT], ids=["chat completions", "Responses"])
def test_both_shapes_of_a_tool_are_read(raw):  # vllm-project/vllm#39574
    tools = read_tools([raw])
    assert tools.tools[0].name == "f"
    assert tools.tools[0].parameters == {"type": "object"}


def test_a_function_needs_nothing_but_a_name():
    [tool] = read_tools([{"type": "function", "function": {"name": "f"}}]).tools
    assert (tool.parameters, tool.strict, tool.description) == (None, None, None)


@pytest.mark.parametrize("name", ["f", "a-b_c", "mcp__github/issues.list:v2", "x" * 128])
def test_names_may_hold_what_openai_and_mcp_use(name):
    assert read_tools([{"name": name}]).tools[0].name == name


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        ({"tools": []}, "tools"),
        (["f"], "tools[0]"),
        ([NESTED, {"type": "function", "function": []}], "tools[1].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"name": ""}], "tools[0].name"),
        ([{"name": "a b"}], "tools[0].name"),
        ([{"name": "a<b"}], "tools[0].name"),
        ([{"name": "x" * 129}], "tools[0].name"),
        ([{"name": "f\n"}], "tools[0].name"),
        ([{"name": "f", "parameters": []}], "tools[0].parameters"),
        ([{"name": "f", "strict": 1}], "tools[0].strict"),
        ([{"name": "f", "description": 1}], "tools[0].description"),
        ([NESTED, FLAT], "tools[1]"),
    ],
)
def test_what_is_no_tool_is_refused_by_its_place(raw: Any, param: str):
    with pytest.raises(InvalidRequest) as refused:
        read_tools(raw)
    assert refused.value.param == param


def test_hosted_tools_are_not_served():
    with pytest.raises(UnsupportedParameter) as refused:
        read_tools([{"type": "web_search"}])
    assert refused.value.param == "tools[0].type"


def test_the_same_bytes_are_read_once():
    raw = json.dumps([NESTED]).encode()
    assert tools_from_json(raw) is tools_from_json(bytes(bytearray(raw)))
    alike = bytearray(b" " * 100 + raw)
    assert tools_from_json(bytes(alike)) is not tools_from_json(raw)
    alike[1] = ord("\n")  # between the bytes that are hashed
    assert tools_from_json(bytes(alike)) is not tools_from_json(b" " * 100 + raw)


def test_bytes_that_are_no_json_are_refused():
    with pytest.raises(InvalidRequest):
        tools_from_json(b"[")


@pytest.mark.parametrize(
    ("raw", "choice"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "g"}}, ToolChoice("required", ("g",), True)),
        ({"type": "function", "name": "g"}, ToolChoice("required", ("g",), True)),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [FLAT]}},
            ToolChoice("required", ("f",)),
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [NESTED]},
            ToolChoice("auto", ("f",)),
        ),
    ],
)
def test_every_choice_of_both_dialects_is_read(raw, choice):
    assert read_choice(raw, TWO) == choice


@pytest.mark.parametrize(
    "raw",
    [
        "any",
        7,
        {"type": "function"},
        {"type": "function", "function": {"name": "nope"}},
        {"type": "tool", "name": "f"},
        {"type": "allowed_tools", "mode": "none", "tools": []},
        {"type": "allowed_tools", "allowed_tools": []},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "nope"}]},
        {"type": "allowed_tools", "mode": "required", "tools": []},
    ],
)
def test_a_choice_of_nothing_is_refused(raw):
    with pytest.raises(InvalidRequest):
        read_choice(raw, TWO)


def test_a_call_cannot_be_required_without_tools():
    with pytest.raises(InvalidRequest):
        read_choice("required", read_tools([]))


def test_allowed_tools_keep_the_order_of_the_request():
    choice = ToolChoice("auto", ("g", "f"))
    assert [tool.name for tool in TWO.allowed(choice)] == ["f", "g"]
