"""Which validations are surely little work."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.toolcalls.effort import MOST_WORK, is_little_work
from prime_inference.toolcalls.format import format_named
from prime_inference.toolcalls.parser import parse
from prime_inference.toolcalls.tools import Tool, ToolSet


def little(schema: Any, arguments: str = '{"a": 1}') -> bool:
    return is_little_work(arguments, Tool("f", schema))


LITTLE: dict[str, Any] = {
    "no schema": None,
    "plain properties": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "a parameter named pattern": {"type": "object", "properties": {"pattern": {"type": "string"}}},
    "a definition named $ref": {"$defs": {"$ref": {"type": "string"}}},
    "data that looks like a reference": {"properties": {"a": {"enum": [{"$ref": "#"}]}}},
    "branches": {"anyOf": [{"type": "object"}, {"not": {"required": ["a"]}}]},
}
MUCH: dict[str, Any] = {
    "a reference": {"properties": {"a": {"$ref": "#/$defs/a"}}},
    "a reference in a list": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
    "a dynamic reference": {"items": {"$dynamicRef": "#a"}},
    "a pattern": {"properties": {"a": {"pattern": "(a+)+$"}}},
    "a pattern beneath a property named properties": {
        "properties": {"properties": {"properties": {"a": {"pattern": "x"}}}}
    },
    "patterns of names": {"patternProperties": {"(a+)+$": True}},
    "what no subschema has seen": {
        "if": {"if": True, "then": True},
        "unevaluatedProperties": False,
    },
    "items that none has seen": {
        "allOf": [{"allOf": [{}]}],
        "unevaluatedItems": {"type": "string"},
    },
    "an unknown keyword": {"properties": {"a": {"later": True}}},
    "a pattern as data": {"properties": {"a": {"format": "regex"}}},
    "a reference in a dependency": {"dependencies": {"a": {"$ref": "#"}}},
    "a comparison of all with all": {"properties": {"a": {"uniqueItems": True}}},
}


@pytest.mark.parametrize("name", LITTLE)
def test_a_schema_without_references_and_patterns_is_little_work(name: str):
    assert little(LITTLE[name])


@pytest.mark.parametrize("name", MUCH)
def test_references_and_patterns_may_be_much_work(name: str):
    assert not little(MUCH[name])


def test_size_makes_much_work_of_little():
    schema = {"properties": {"a": {"enum": list(range(1000))}}}
    assert little(schema)
    assert not little(schema, '{"a": "' + "x" * (MOST_WORK // 3000) + '"}')
    assert not little({"title": "x" * 100_000})


def test_a_parser_leaves_much_work_alone():
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(45):  # judged by a validator, this would take hours
        schema = {"if": schema, "then": True, "unevaluatedProperties": False}
    tools = ToolSet([Tool("f", schema)])
    text = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    [call] = parse(text, format_named("hermes"), tools).calls
    assert (call.arguments, call.problems) == ('{"a": 1}', ())
