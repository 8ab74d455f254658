"""Reports about grammars: what must be accepted, and what must not, in every format.

Each report has relatives: the same fault in other formats or shapes. Upstream's behaviour at
the time of the report stands in the comment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from prime_inference.toolcalls.constraint import structural_tag
from prime_inference.toolcalls.format import load
from prime_inference.toolcalls.tools import AUTO, ToolChoice, read_tools
from tests.grammar.engine import accepts, grammar_of
from tests.toolcalls.case import (
    coder,
    deepseek,
    deepseek_call,
    dsml,
    glm,
    glm45,
    hermes,
    kimi,
    kimi_call,
    llama,
)

FORMATS = sorted(load())
REQUIRED = ToolChoice("required")
NAMED = ToolChoice("required", ("f",), single=True)
Accepts = Callable[[str], bool]


def grammar(name: str, schema: Any, choice: ToolChoice = REQUIRED, **more: Any) -> Accepts:
    """Whether the constraint for a tool `f` of this schema accepts a text."""
    tools = read_tools([{"name": "f", "parameters": schema, **more.pop("tool", {})}, {"name": "g"}])
    built = grammar_of(structural_tag(load()[name], tools, choice, **more))
    return lambda text: accepts(built, text)


def calls(name: str, *arguments: Any) -> str:
    return load()[name].render_all([("f", one) for one in arguments])


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize("name", FORMATS)
def test_a_required_call_can_end_and_need_not_be_repeated(name):  # mlc-ai/xgrammar#695
    for choice in (REQUIRED, NAMED):
        ok = grammar(name, CITY, choice)
        assert ok(calls(name, {"city": "Paris"}))
    assert grammar(name, CITY)(calls(name, {"city": "Paris"}, {"city": "Rome"}))


@pytest.mark.parametrize("name", FORMATS)
def test_one_call_means_one_call(name):  # vllm-project/vllm#26233: ignored, then only trimmed
    two = calls(name, {"city": "Paris"}, {"city": "Rome"})
    assert not grammar(name, CITY, parallel=False)(two)
    assert not grammar(name, CITY, NAMED)(two)
    assert not grammar(name, CITY, AUTO, parallel=False)("Well. " + two)
    assert grammar(name, CITY, AUTO)("Well. " + two)


@pytest.mark.parametrize("name", FORMATS)
def test_required_is_in_the_models_own_format(name):  # vllm-project/vllm#35936: always JSON
    ok = grammar(name, CITY)
    assert ok(calls(name, {"city": "Paris"}))
    for other in FORMATS:
        text = calls(other, {"city": "Paris"})
        assert ok(text) == (text == calls(name, {"city": "Paris"})), other


@pytest.mark.parametrize("name", FORMATS)
def test_no_arguments_is_no_room_for_whitespace(name):  # mlc-ai/xgrammar#802: a loop
    empty = {"type": "object", "properties": {}}
    ok = grammar(name, empty)
    text = calls(name, {})
    assert ok(text)
    for blank in ("\t\t\t\t", " " * 40, "\n\n\n"):
        for place in range(len(text) + 1):
            assert not ok(text[:place] + blank + text[place:])


@pytest.mark.parametrize("name", FORMATS)
def test_whitespace_inside_values_is_bounded(name):  # the same for nested objects and arrays
    schema = {"type": "object", "properties": {"o": {"type": "object"}, "a": {"type": "array"}}}
    ok = grammar(name, schema)
    text = calls(name, {"o": {}, "a": []})
    assert ok(text)
    assert not ok(text.replace("{}", "{" + " " * 40 + "}"))
    assert not ok(text.replace("[]", "[" + "\n" * 3 + "]"))


@pytest.mark.parametrize("name", FORMATS)
def test_siblings_of_any_of_hold(name):  # mlc-ai/xgrammar#858: dropped
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    }
    ok = grammar(name, schema)
    assert ok(calls(name, {"a": 1}))
    assert ok(calls(name, {"b": 1}))
    assert not ok(calls(name, {}))
    assert not ok(calls(name, {"a": 1, "zzz": 1}))
    assert not ok(calls(name, {"a": "x"}))


@pytest.mark.parametrize("name", FORMATS)
def test_a_declared_name_is_no_free_name(name):  # mlc-ai/xgrammar#208: any value under `a`
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "ab": {"type": "integer"}},
        "additionalProperties": {"type": "boolean"},
    }
    ok = grammar(name, schema)
    assert ok(calls(name, {"a": 1, "free": True, "abc": False}))
    assert not ok(calls(name, {"a": True}))
    assert not ok(calls(name, {"ab": True}))
    assert not ok(calls(name, {"free": 1}))


@pytest.mark.parametrize("name", FORMATS)
def test_auto_is_constrained_without_strict(name):  # vllm-project/vllm#40801: no grammar at all
    ok = grammar(name, CITY, AUTO)
    assert ok("Just text.")
    assert ok("Now: " + calls(name, {"city": "Paris"}))
    assert not ok("Now: " + calls(name, {"town": "Paris"}))
    assert not ok("Now: " + calls(name, {}))


@pytest.mark.parametrize("name", FORMATS)
def test_strict_is_of_each_tool(name):  # lightseekorg/smg#2550: applied to the wrong tools
    form = load()[name]
    tools = read_tools(
        [{"name": "f", "parameters": CITY, "strict": True},
         {"name": "h", "parameters": CITY, "strict": False}]
    )  # fmt: skip
    built = grammar_of(structural_tag(form, tools, REQUIRED))
    assert accepts(built, form.render_all([("f", {"city": "Paris"})]))
    assert not accepts(built, form.render_all([("f", {"town": "Paris"})]))
    assert accepts(built, form.render_all([("h", {"town": "Paris", "n": 7})]))


@pytest.mark.parametrize("name", FORMATS)
def test_only_the_tools_that_are_allowed(name):
    form, tools = load()[name], read_tools([{"name": "f"}, {"name": "fg"}])
    built = grammar_of(structural_tag(form, tools, ToolChoice("required", ("fg",))))
    assert accepts(built, form.render_all([("fg", {})]))
    assert not accepts(built, form.render_all([("f", {})]))


TREE = {
    "type": "object",
    "properties": {"t": {"$ref": "#/$defs/T"}},
    "$defs": {
        "T": {
            "type": "object",
            "properties": {"sub": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
            "additionalProperties": False,
        }
    },
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_recursive_reference_compiles(name):  # mlc-ai/xgrammar#207: a crash
    ok = grammar(name, TREE)
    assert ok(calls(name, {"t": {"sub": [{"sub": []}, {}]}}))
    assert not ok(calls(name, {"t": {"sub": [1]}}))


ENDING = {
    "glm-4.5": glm45(v="a</arg_value>b").lstrip(),
    "glm-4.7": glm(v="a</arg_value>b"),
    "qwen3-coder": coder(v="a</parameter>b"),
    "deepseek-v3.2": dsml(v="a</｜DSML｜parameter>b").lstrip(),
    "kimi-k2": kimi(kimi_call({"v": "<|tool_call_end|>"})),
    "deepseek-v3.1": deepseek(deepseek_call({"v": "<｜tool▁call▁end｜>"})),
}
HARMLESS = {
    "glm-4.5": glm45(v="<arg_key>z</arg_key></tool_call>").lstrip(),
    "glm-4.7": glm(v="<arg_key>z</arg_key></tool_call>"),
    "qwen3-coder": coder(v="</function></tool_call>"),
    "deepseek-v3.2": dsml(v="</｜DSML｜invoke>").lstrip(),
    "kimi-k2": kimi(kimi_call('{"v": "\\u003c|tool_call_end|>"}')),
    "deepseek-v3.1": deepseek(deepseek_call({"v": "</x>"})),
}


@pytest.mark.parametrize("name", ENDING)
def test_a_string_cannot_hold_what_would_end_it(name):  # Rapid-MLX#1542, mlc-ai/xgrammar#912
    ok = grammar(name, {"properties": {"v": {"type": "string"}}})
    assert not ok(ENDING[name])
    assert ok(HARMLESS[name])


@pytest.mark.parametrize("text", [hermes({"v": "</tool_call>"}), hermes({"v": '"}}'})])
def test_json_strings_in_json_hold_everything(text):
    assert grammar("hermes", {"properties": {"v": {"type": "string"}}})(text)
    llamas = grammar("llama-3", {"properties": {"v": {"type": "string"}}})
    assert llamas(llama({"v": '"}; {"name"'}))


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>f</arg_key><arg_value>x</arg_value></tool_call>",  # vllm-project/vllm#47190
        "<tool_call>\nf<arg_key>v</arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call>f<arg_key> v </arg_key><arg_value>x</arg_value></tool_call>",
        "<tool_call>f<arg_key>v</arg_key><arg_value>x</arg_value>",
        "<tool_call>f<arg_key>v</arg_key></tool_call>",
        "<tool_call>f</tool_call>",
        "<tool_call>ff<arg_key>v</arg_key><arg_value>x</arg_value></tool_call>",
        glm(v="x").replace(
            "</tool_call>", "<arg_key>v</arg_key><arg_value>y</arg_value></tool_call>"
        ),
    ],
)
def test_the_grammar_prevents_what_no_parser_can_mend(text):
    ok = grammar("glm-4.7", {"properties": {"v": {"type": "string"}}, "required": ["v"]})
    assert ok(glm(v="x"))
    assert not ok(text)
