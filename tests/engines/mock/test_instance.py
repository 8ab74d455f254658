from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.engines.mock.instance import minimal_instance

LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 9},
        {"type": "string", "maxLength": 2},
        {"type": "integer"},
        {"type": "integer", "minimum": 3, "maximum": 5},
        {"type": "number", "exclusiveMinimum": 3},
        {"type": "integer", "maximum": -2},
        {"type": "boolean"},
        {"type": "null"},
        {"type": ["string", "null"]},
        {"enum": ["red", "green"]},
        {"const": 7},
    ]
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    named = st.dictionaries(st.sampled_from("abc"), inner, min_size=1)
    return st.one_of(
        named.map(lambda p: {"type": "object", "properties": p, "required": sorted(p)}),
        inner.map(lambda i: {"type": "array", "items": i, "minItems": 2}),
        inner.map(lambda i: {"anyOf": [i, {"type": "null"}]}),
        inner.map(lambda i: {"allOf": [i]}),
    )


@given(st.recursive(LEAVES, nested, max_leaves=6))
def test_an_instance_satisfies_its_schema(schema):
    jsonschema.validate(minimal_instance(schema), schema)


def test_optional_properties_are_left_out():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    assert minimal_instance(schema) == {}


def test_local_definitions_are_followed():
    schema = {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/City"}},
        "required": ["city"],
        "$defs": {"City": {"enum": ["Oslo"]}},
    }
    assert minimal_instance(schema) == {"city": "Oslo"}


def test_a_schema_that_contains_itself_ends():
    schema = {
        "$ref": "#/$defs/Node",
        "$defs": {
            "Node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/Node"}},
                "required": ["next"],
            }
        },
    }
    assert "next" in minimal_instance(schema)


@pytest.mark.parametrize("schema", [{}, {"type": "string", "format": "date"}])
def test_what_is_not_solved_gets_a_value_of_its_type(schema):
    assert isinstance(minimal_instance(schema), str)
