"""llama.cpp takes every grammar that is written for it, and a real model's calls are valid."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.constraint import gbnf
from prime_inference.toolcalls.format import load
from prime_inference.toolcalls.parser import ReasoningMode, parse
from prime_inference.toolcalls.tools import AUTO, Tool, ToolChoice, ToolSet, read_tools
from tests.toolcalls.conftest import Complete
from tests.toolcalls.strategies import tool_calls

FORMATS = sorted(load())
MODES: tuple[ReasoningMode, ...] = ("none", "opened", "optional")

compiling = settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would load it for minutes
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("name", FORMATS)
@compiling
@given(drawn=tool_calls(), mode=st.sampled_from(MODES), parallel=st.booleans(),
       choice=st.sampled_from([AUTO, ToolChoice("required"), ToolChoice("none"),
                               ToolChoice("required", ("tool_0",), single=True)]))  # fmt: skip
def test_every_grammar_is_accepted(name, complete: Complete, drawn, mode, parallel, choice):
    form = load()[name]
    built = gbnf(form, read_tools(drawn[0]), choice, parallel=parallel, reasoning=mode)
    if built.grammar is None:
        assert (name, choice.mode) == ("llama-3", "none")
        return
    answer = complete(prompt="Hello", n_predict=1, grammar=built.grammar)
    assert "error" not in answer, built.grammar


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("items", "letters"), [(20, 200), (50, 100), (500, 500)])
def test_bounded_lists_of_bounded_texts_are_accepted(name, complete: Complete, items, letters):
    text = {"type": "string", "maxLength": letters}
    inner = {"type": "array", "maxItems": items, "items": text}
    outer = {"type": "array", "maxItems": items, "items": inner}
    tools = ToolSet([Tool("f", {"type": "object", "properties": {"inner": inner, "outer": outer}})])
    built = gbnf(load()[name], tools, ToolChoice("required"))
    answer = complete(prompt="Hello", n_predict=1, grammar=built.grammar)
    assert "error" not in answer, built.grammar


def test_a_grammar_that_is_none_is_refused(complete: Complete):
    assert "error" in complete(prompt="Hello", n_predict=1, grammar='root ::= "a" missing')


TOOLS = ToolSet(
    [
        Tool("get_weather", {
            "type": "object",
            "properties": {
                "city": {"type": "string", "minLength": 1, "maxLength": 24},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        }),
        Tool("now", {"type": "object", "properties": {}, "additionalProperties": False}),
        Tool("paint", {
            "type": "object",
            "properties": {
                "colour": {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
                "size": {"type": ["number", "null"], "minimum": 0.5, "maximum": 10},
                "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
            },
            "required": ["colour", "size"],
        }),
    ]
)  # fmt: skip
PROMPT = (
    "<|im_start|>system\nCall a tool.<|im_end|>\n"
    "<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize("choice", [ToolChoice("required"), *(
    ToolChoice("required", (tool.name,), single=True) for tool in TOOLS.tools
)], ids=lambda choice: str(choice.names or "required"))  # fmt: skip
@pytest.mark.parametrize("name", ["hermes", "glm-4.7"])
def test_a_real_model_calls_validly_where_it_must(name: str, choice: Any, complete: Complete):
    form = load()[name]
    built = gbnf(form, TOOLS, choice, parallel=False)
    answer = complete(prompt=PROMPT, n_predict=300, seed=7, grammar=built.grammar)
    text = answer["choices"][0]["text"]
    message = parse(text, form, TOOLS)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert [call.problems for call in message.calls] == [()], text
    assert message.calls[0].name in (choice.names or TOOLS.by_name)
    json.loads(message.calls[0].arguments)
