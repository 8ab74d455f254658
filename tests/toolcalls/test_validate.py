# ruff: noqa: E501  (one schema, one line)
"""The judgement of arguments, and that no schema can hold it up or make it reach out."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import MOST_PROBLEMS, Bucket, check_arguments

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "s": {"enum": ["x"]}, "o": {"type": "object"}},
    "required": ["n"],
    "additionalProperties": False,
}


def judged(arguments: str, schema: Any = SCHEMA) -> list[tuple[str, str]]:
    found = check_arguments(arguments, Tool("f", schema))
    return [(problem.bucket.value, problem.path) for problem in found]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"n": 1}', []),
        ('{"n": 1.0}', []),
        ('{"n": "1"}', [("SchemaMismatch", "/n")]),
        ('{"n": true}', [("SchemaMismatch", "/n")]),
        ("{}", [("SchemaMismatch", "")]),
        ('{"n": 1, "z": 1}', [("SchemaMismatch", "")]),
        ('{"n": 1, "s": "y"}', [("SchemaMismatch", "/s")]),
        ('{"n": null, "s": "y"}', [("SchemaMismatch", "/n"), ("SchemaMismatch", "/s")]),
        ("[]", [("SchemaMismatch", "")]),
        ("", [("InvalidJson", "")]),
        ('{"n": 1', [("InvalidJson", "")]),
        ('{"n": 01}', [("InvalidJson", "")]),
        ('{"n": NaN}', [("InvalidJson", "")]),
        ('{"n": 1}x', [("InvalidJson", "")]),
        ('{"n": "a\nb"}', [("InvalidJson", "")]),
        ('{"s": "\\ud800 "}', [("InvalidJson", "")]),
        ('{"n": 1, "n": 2}', []),
        ('{"o": ' + "[" * 5000 + "]" * 5000 + ', "n": 1}', [("InvalidJson", "")]),
        ('{"n": 123456789012345678901234567890}', []),
    ],
)
def test_arguments_fall_into_the_buckets(arguments, expected):
    assert judged(arguments) == expected


def test_paths_are_json_pointers():
    schema = {"properties": {"a/b": {"items": {"properties": {"~": {"type": "null"}}}}}}
    assert judged('{"a/b": [{}, {"~": 1}]}', schema) == [("SchemaMismatch", "/a~1b/1/~0")]


def test_only_the_first_problems_are_listed():
    schema = {"additionalProperties": {"type": "null"}}
    arguments = "{" + ", ".join(f'"k{i}": {i}' for i in range(100)) + "}"
    assert len(judged(arguments, schema)) == MOST_PROBLEMS


@pytest.mark.parametrize("schema", [None, True, {}, {"type": "strin"}, {"properties": {"n": 1}}])
def test_a_schema_that_says_nothing_judges_nothing(schema):
    assert judged('{"n": "anything"}', schema) == []


@pytest.mark.parametrize(
    ("schema", "arguments", "valid"),
    [
        ({"properties": {"n": {"type": "integer", "nullable": True}}}, '{"n": null}', True),
        ({"properties": {"n": {"type": "integer", "nullable": True}}}, '{"n": "x"}', False),
        ({"properties": {"n": {"enum": ["a"], "type": "string", "nullable": True}}}, '{"n": null}', True),
        ({"properties": {"n": {"$ref": "#/$defs/I", "nullable": True}}, "$defs": {"I": {"type": "integer"}}}, '{"n": null}', True),
        ({"properties": {"nullable": {"type": "integer"}}}, '{"nullable": null}', False),
        ({"properties": {"n": {"type": "array", "items": [{"type": "integer"}]}}}, '{"n": ["x"]}', False),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"n": {"minimum": 1, "exclusiveMinimum": True}}}, '{"n": 1}', False),
        ({"$schema": "https://example.com/no-such-draft", "properties": {"n": {"type": "integer"}}}, '{"n": "x"}', False),
    ],
)  # fmt: skip
def test_dialects_of_schemas_are_understood(schema, arguments, valid):
    assert (judged(arguments, schema) == []) == valid


def test_a_schema_is_compiled_once():
    tool = Tool("f", SCHEMA)
    check_arguments("{}", tool)
    first = tool.__dict__["validator"]
    check_arguments("{}", tool)
    assert tool.__dict__["validator"] is first


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(?=a)^(a+)+$", "^(a|a)*$", "^(?:(a+)+b)+\\1$"])
def test_no_pattern_backtracks_without_end(pattern):
    arguments = '{"s": "' + "a" * 5000 + '!"}'
    assert judged(arguments, {"properties": {"s": {"pattern": pattern}}}) != []


def test_no_schema_makes_the_validator_fetch_anything():
    asked = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)

        def listen() -> None:
            try:
                server.accept()[0].close()
            except TimeoutError:
                return
            asked.set()

        listener = threading.Thread(target=listen)
        listener.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/schema"
        for schema in ({"$ref": url}, {"$schema": url}, {"$id": url, "$ref": "other"}):
            judged("{}", schema)
        judged("{}", {"properties": {"a": {"$ref": "file:///etc/hostname"}}})
        listener.join()
    assert not asked.is_set()


def test_the_buckets_are_those_of_the_public_definition():
    assert [bucket.value for bucket in Bucket] == ["InvalidJson", "UnknownName", "SchemaMismatch"]
