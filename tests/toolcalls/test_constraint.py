"""The shape of constraints; what they accept is tested with real xgrammar (tests/grammar)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prime_inference.toolcalls.constraint import StructuralTag, gbnf, structural_tag
from prime_inference.toolcalls.format import format_named, load
from prime_inference.toolcalls.grammar import ROOM
from prime_inference.toolcalls.tools import AUTO, ToolChoice, read_tools

FORMATS = sorted(load())
REQUIRED = ToolChoice("required")
NAMED = ToolChoice("required", ("f",), single=True)


def two_tools():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    return read_tools([{"name": "f", "parameters": schema}, {"name": "g"}])


def format_of(built: StructuralTag) -> dict[str, Any]:
    assert built.tag is not None
    assert built.tag["type"] == "structural_tag"
    found: dict[str, Any] = built.tag["format"]
    return found


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("choice", [AUTO, REQUIRED, NAMED], ids=["auto", "required", "named"])
def test_all_tools_share_one_grammar(name, choice):
    built = structural_tag(load()[name], two_tools(), choice)
    assert msgspec.json.decode(built.encoded) == built.tag
    assert built.encoded.count(b'"type":"grammar"') == 1


@pytest.mark.parametrize("name", FORMATS)
def test_free_text_goes_on_until_the_trigger(name):
    form = load()[name]
    found = format_of(structural_tag(form, two_tools()))
    assert found["type"] == "triggered_tags"
    assert found["triggers"] == [form.frame.trigger]
    assert found["at_least_one"] is False


def test_without_tools_nothing_is_constrained():
    for choice in (AUTO, ToolChoice("none")):
        assert structural_tag(format_named("hermes"), read_tools([]), choice).tag is None
        assert gbnf(format_named("hermes"), read_tools([]), choice).grammar is None


def test_no_call_is_written_where_none_is_wanted():
    found = format_of(structural_tag(format_named("hermes"), two_tools(), ToolChoice("none")))
    assert found["type"] == "any_text"
    assert "<tool_call>" in found["excludes"]


def test_llama_calls_cannot_be_told_from_text_beforehand():
    assert structural_tag(format_named("llama-3"), two_tools(), ToolChoice("none")).tag is None


def test_a_constraint_is_built_once_for_a_set_of_tools():
    tools, form = two_tools(), format_named("hermes")
    first = structural_tag(form, tools, REQUIRED)
    assert structural_tag(form, tools, ToolChoice("required")) is first
    assert structural_tag(form, tools, REQUIRED, parallel=False) is not first
    assert gbnf(form, tools, REQUIRED) is gbnf(form, tools, REQUIRED)


def test_the_kept_constraints_are_bounded():
    tools, form = read_tools([{"name": f"t{i}"} for i in range(60)]), format_named("hermes")
    for i in range(60):
        structural_tag(form, tools, ToolChoice("auto", (f"t{i}",)))
    assert len(tools.built) <= 32


def test_a_lazy_grammar_names_its_trigger():
    built = gbnf(format_named("glm-4.7"), two_tools())
    assert built.triggers == ("<tool_call>",)
    assert gbnf(format_named("glm-4.7"), two_tools(), REQUIRED).triggers == ()


RELAXED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def test_what_is_relaxed_is_named_with_its_tool():
    built = structural_tag(
        format_named("hermes"), read_tools([{"name": "f", "parameters": RELAXED}])
    )
    assert [(one.tool, one.path, one.keyword) for one in built.relaxed] == [
        ("f", "/properties/a", "uniqueItems")
    ]


def test_strict_false_leaves_the_schema_to_validation():
    tools = read_tools([{"name": "f", "parameters": RELAXED, "strict": False}])
    built = structural_tag(format_named("hermes"), tools)
    assert built.relaxed == ()
    assert '\\"a\\"' not in built.encoded.decode()


def test_a_tool_that_admits_nothing_is_written_with_any_arguments():
    both = {"allOf": [{"type": "string"}, {"type": "null"}]}
    impossible = {"type": "object", "properties": {"a": both}, "required": ["a"]}
    tools = read_tools([{"name": "f", "parameters": impossible}])
    built = structural_tag(format_named("hermes"), tools)
    assert built.tag is not None
    assert built.relaxed


def test_a_name_that_tags_cannot_hold_is_named():
    schema = {"type": "object", "properties": {"a<b": {"type": "string"}}}
    built = structural_tag(
        format_named("glm-4.7"), read_tools([{"name": "f", "parameters": schema}])
    )
    assert [one.why for one in built.relaxed] == ["the format cannot hold this name"]


@pytest.mark.parametrize(
    "one",
    [
        lambda i: {"type": "number", "minimum": i / 7, "maximum": 1e9 + i / 13},
        lambda i: {"type": "string", "pattern": f"^(foo|bar{i})+[^x]{{3,100}}é+$"},
        lambda i: {"properties": {f"{i}x" * 9: {}}, "additionalProperties": True},
    ],
)
def test_what_is_costly_to_write_has_an_end_in_one_grammar(one):
    properties = {f"p{i}": one(i) for i in range(700)}
    tools = read_tools([{"name": "f", "parameters": {"properties": properties}}])
    built = structural_tag(format_named("hermes"), tools, REQUIRED)
    assert len(built.encoded) < 4 * ROOM
    assert any("one grammar" in r.why or "so many" in r.why for r in built.relaxed)
