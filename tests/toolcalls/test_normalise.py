# ruff: noqa: E501  (one hostile schema, one line)
"""Schemas in normal form: they admit what the schema admits, or say what they relaxed."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.normalise import MOST_ALTERNATIVES, normalise, normalise_arguments
from prime_inference.toolcalls.shapes import (
    ANY,
    ANY_RECORD,
    INTEGER,
    NULL,
    TEXT,
    Array,
    Choice,
    Membership,
    Number,
    Record,
    Reference,
    Steps,
    Text,
)
from tests.toolcalls.strategies import schemas

Json = Any


def fits(schema: Json, value: Json) -> bool:
    normal = normalise(schema)
    return Membership(normal.definitions).fits(value, normal.shape)


def relaxed(schema: Json) -> list[str]:
    return [one.keyword for one in normalise(schema).relaxed]


def test_branches_of_all_of_are_merged():
    assert normalise({"allOf": [{"type": "integer"}, {"minimum": 5}]}).shape == (
        Number(integer=True, low=5),
    )


def test_open_api_nullable_is_a_null_beside_the_type():
    assert normalise({"type": "integer", "nullable": True}).shape == INTEGER + NULL


def test_a_list_of_types_is_a_union():
    assert normalise({"type": ["string", "null"]}).shape == TEXT + NULL


def test_siblings_of_a_reference_are_merged_with_it():
    schema = {"$ref": "#/$defs/S", "maxLength": 2, "$defs": {"S": {"type": "string"}}}
    assert normalise(schema).shape == (Text(longest=2),)


@pytest.mark.parametrize(
    "reference",
    ["#/$defs/a~1b%20c", "#anchor", "https://example.com/s#anchor", "https://example.com/s", "sub"],
)
def test_references_resolve_by_pointer_anchor_and_id(reference):
    target = {"$id": "sub", "type": "integer", "$anchor": "anchor"}
    schema = {
        "$id": "https://example.com/",
        "$ref": reference,
        "$defs": {
            "a/b c": target,
            "x": {"$id": "https://example.com/s", "$anchor": "anchor", "type": "integer"},
        },
    }
    normal = normalise(schema)
    assert normal.relaxed == ()
    assert [
        normal.definitions[kind.name] for kind in normal.shape if isinstance(kind, Reference)
    ] == [INTEGER]


@pytest.mark.parametrize(
    "reference", ["#/$defs/none", "https://example.com/x", "#none", 7, "#/a/0"]
)
def test_a_reference_that_leaves_the_schema_is_relaxed(reference):
    normal = normalise({"$ref": reference, "$defs": {}})
    assert normal.shape == ANY
    assert [one.keyword for one in normal.relaxed] == ["$ref"]


def test_recursion_stays_a_reference():
    normal = normalise({"type": "object", "properties": {"next": {"$ref": "#"}}})
    assert normal.shape == (Record(properties=(("next", (Reference("#"),)),), free=ANY),)
    assert normal.definitions["#"] == normal.shape


def test_a_reference_to_itself_alone_is_any_value():
    normal = normalise({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}})
    assert normal.definitions["#/$defs/a"] == ANY
    assert [one.why for one in normal.relaxed] == ["refers only to itself"]


def test_siblings_of_any_of_are_pushed_into_its_branches():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        "additionalProperties": False,
    }
    assert fits(schema, {"a": ""})
    assert fits(schema, {"b": ""})
    assert not fits(schema, {})
    assert not fits(schema, {"a": "", "zzz": 1})
    assert relaxed(schema) == []


def test_branches_that_cannot_both_hold_make_one_of_exact():
    tagged = [
        {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("a", "b")
    ]
    assert relaxed({"oneOf": tagged}) == []
    assert relaxed({"oneOf": [{"type": "integer"}, {"type": "number"}]}) == ["oneOf"]


def test_a_schema_without_type_is_of_the_type_its_keywords_speak_of():
    assert normalise({"properties": {"a": {}}}).shape == (
        Record(properties=(("a", ANY),), free=ANY),
    )
    assert normalise({"items": {"type": "string"}}).shape == (Array(items=TEXT),)
    assert normalise({"anyOf": [{"type": "null"}, {"minLength": 1}]}).shape == (
        *NULL,
        Text(shortest=1),
    )


def test_true_is_not_one_and_one_point_zero_is():
    assert not fits({"enum": [1, 0]}, True)
    assert fits({"enum": [1, 0]}, 1.0)
    assert normalise({"enum": [True, 1]}).shape == (Choice(("true", "1")),)
    assert normalise({"anyOf": [{"const": True}, {"const": 1}]}).shape == (
        Choice(("true",)),
        Choice(("1",)),
    )


@pytest.mark.parametrize(
    ("schema", "keywords"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"]),
        ({"not": {"type": "string"}}, ["not"]),
        ({"type": "number", "multipleOf": 0.5}, ["multipleOf"]),
        ({"type": "array", "contains": {"const": 1}, "minContains": 2}, ["contains", "minContains"]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["if"]),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        ({"type": "object", "patternProperties": {"^a": {}, "^b": {}}}, ["patternProperties"]),
        ({"type": "object", "minProperties": 3}, ["minProperties"]),
        ({"type": "object", "maxProperties": 1}, ["maxProperties"]),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, ["propertyNames"]),
        ({"type": "strin"}, ["type"]),
        ({"minLength": "3"}, ["minLength"]),
        ({"type": "object", "properties": []}, ["properties"]),
        ({"type": "object", "properties": {"a": 1}}, [""]),
        ({"enum": "a"}, ["enum"]),
        ({"type": "integer", "multipleOf": 1}, []),
        ({"type": "integer", "minimum": 10**400}, ["minimum"]),
        ({"type": "number", "maximum": -(10**400)}, ["maximum"]),
        ({"type": "string", "format": "date", "x-order": 1}, []),
    ],
)  # fmt: skip
def test_what_is_not_enforced_is_named(schema, keywords):
    assert relaxed(schema) == keywords


ROOT = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize("schema", [None, True, {}, {"description": "Anything."}])
def test_arguments_without_a_schema_are_any_object(schema):
    assert normalise_arguments(schema).shape == ANY_RECORD


def test_arguments_are_objects_whatever_else_the_schema_admits():
    normal = normalise_arguments({"anyOf": [{"type": "string"}, ROOT, {"const": {"a": "x"}}]})
    assert [type(kind) for kind in normal.shape] == [Record, Choice]
    assert normal.relaxed == ()


def test_arguments_whose_schema_admits_no_object_are_any_object():
    normal = normalise_arguments({"type": "string"})
    assert normal.shape == ANY_RECORD
    assert [one.why for one in normal.relaxed] == ["the schema admits no object"]


DEEP: Json = {}
for _ in range(900):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
HOSTILE = {
    "nested deeply": DEEP,
    "all of any of": {"allOf": [{"anyOf": [{"type": "object", "properties": {f"p{i}": {"const": j}}} for j in range(9)]} for i in range(9)]},
    "doubling all of": {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)} | {"d40": {}}},
    "doubling properties": {"allOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}], "$defs": {f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}, "b": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(40)} | {"d40": {}}},
    "any of itself": {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}, {"type": "null"}]}}},
    "recursive all of": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"x": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}}}, "b": {"type": "object", "properties": {"x": {"allOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/a"}]}}}}},
    "many properties": {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i} for i in range(21_000)}},
    "many bad keywords": {"type": "object", "properties": {f"p{i}": {"not": {}} for i in range(2_000)}},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_cut_short_and_says_so(name):
    normal = normalise_arguments(HOSTILE[name])
    assert normal.shape
    assert len(normal.relaxed) <= 200
    if name != "any of itself":  # which is simply null
        assert normal.relaxed


@settings(max_examples=300, deadline=None)
@given(drawn=schemas, data=st.data())
def test_the_normal_form_admits_every_value_that_the_schema_admits(drawn, data):
    schema, values = drawn
    assert fits(schema, data.draw(values)) or not _valid(schema, data)


def _valid(schema: Json, data: st.DataObject) -> bool:
    """Values of a oneOf may fit two branches; everything else drawn is valid."""
    return "oneOf" not in repr(schema)


@settings(max_examples=300, deadline=None)
@given(drawn=schemas, other=schemas, data=st.data())
def test_the_normal_form_admits_no_value_that_the_schema_refuses(drawn, other, data):
    schema, _ = drawn
    value = data.draw(other[1])
    normal = normalise(schema)
    if normal.relaxed or "pattern" in repr(schema) or "nullable" in repr(schema):
        return
    valid = jsonschema_rs.validator_for(schema).is_valid(value)
    assert Membership(normal.definitions).fits(value, normal.shape) == valid


def _syntax_tree(size: int) -> Json:
    """Definitions of which each leads to all others by many ways."""

    def branches(i: int) -> list[Json]:
        to_others = [{"$ref": f"#/$defs/d{(i * 7 + j) % size}"} for j in range(4)]
        return [*to_others, {"properties": {f"x{i}": {"$ref": f"#/$defs/d{i * 3 % size}"}}}]

    definitions = {f"d{i}": {"anyOf": branches(i)} for i in range(size)}
    return {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/d0"}}}


def test_definitions_that_lead_to_each_other_hold_each_alternative_once():
    normal = normalise(_syntax_tree(20))
    assert normal.relaxed == ()
    assert max(map(len, normal.definitions.values())) <= 20


@pytest.mark.parametrize("size", [100, 600])
def test_more_alternatives_than_a_grammar_can_hold_are_relaxed(size: int):
    normal = normalise(_syntax_tree(size))
    assert sum(map(len, normal.definitions.values())) <= MOST_ALTERNATIVES + 2 * size
    assert normal.relaxed


def test_comparing_the_values_of_branches_is_bounded():
    def branch(i: int) -> Json:
        values = [[i, j] for j in range(60)]
        return {"properties": {"x": {"enum": values}}, "required": ["x"]}

    assert relaxed({"oneOf": [branch(i) for i in range(30)]}) == ["oneOf"]


def test_a_value_is_looked_up_among_scalars_and_compared_with_others_step_by_step():
    words = normalise({"enum": [f"w{i}" for i in range(1000)]})
    steps = Steps(10)
    membership = Membership(words.definitions, steps)
    assert membership.fits("w999", words.shape)
    assert not membership.fits("w1000", words.shape)
    assert steps.left == 8
    lists = normalise({"enum": [[i] * 100 for i in range(1000)]})
    assert Membership(lists.definitions, Steps(100)).fits([-1], lists.shape)  # given up
    numbers = normalise({"enum": [1, True]})
    membership = Membership(numbers.definitions)
    assert [membership.fits(one, numbers.shape) for one in (1, 1.0, True, 0, False)] == [
        True, True, True, False, False,
    ]  # fmt: skip
