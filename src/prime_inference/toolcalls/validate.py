"""The final judgement of a call: its name, its arguments' JSON, the caller's own schema.

The three buckets are those of OpenRouter's public tool-call error rate, so that ours can be
compared with it. A schema that no validator can read judges nothing, as there.

Validation runs in jsonschema-rs: patterns are matched with bounded backtracking, recursive
and exponential schemas end in bounded time, and nothing is ever fetched.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import jsonschema_rs
import msgspec

from prime_inference.toolcalls.tools import Tool


class Bucket(StrEnum):
    INVALID_JSON = "InvalidJson"
    UNKNOWN_NAME = "UnknownName"
    SCHEMA_MISMATCH = "SchemaMismatch"


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a call. `path` is a JSON pointer into its arguments."""

    bucket: Bucket
    message: str
    path: str = ""


# A call with more is wrong throughout; the first ones show how.
MOST_PROBLEMS = 8
_LONGEST_MESSAGE = 300

# Steps of backtracking before a pattern counts as not matched: about 10 ms of work.
_BACKTRACK_LIMIT = 100_000
_PATTERN_BYTES = 1_000_000


def fault(arguments: str, tool: Tool | None) -> Bucket | None:
    """The bucket of a call's first fault; None if it has none. A tool that is None is unknown."""
    if tool is None:
        return Bucket.UNKNOWN_NAME
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return Bucket.INVALID_JSON
    if not isinstance(decoded, dict):
        return Bucket.SCHEMA_MISMATCH
    validator = validator_of(tool)
    if validator is None or validator.is_valid(decoded):
        return None
    return Bucket.SCHEMA_MISMATCH


def check_arguments(arguments: str, tool: Tool) -> tuple[Problem, ...]:
    """What is wrong with the arguments of a call to this tool, which are JSON text."""
    try:
        decoded = msgspec.json.decode(arguments)
    except msgspec.DecodeError as error:
        return (Problem(Bucket.INVALID_JSON, str(error)),)
    except RecursionError:
        return (Problem(Bucket.INVALID_JSON, "nested too deeply"),)
    if not isinstance(decoded, dict):
        return (Problem(Bucket.SCHEMA_MISMATCH, "arguments are not an object"),)
    validator = validator_of(tool)
    if validator is None:
        return ()
    return tuple(_mismatches(validator, decoded))


def _mismatches(validator: Any, arguments: object) -> list[Problem]:
    if validator.is_valid(arguments):
        return []
    found = []
    for error in validator.iter_errors(arguments):
        path = "".join(f"/{_escaped(step)}" for step in error.instance_path)
        found.append(Problem(Bucket.SCHEMA_MISMATCH, error.message[:_LONGEST_MESSAGE], path))
        if len(found) == MOST_PROBLEMS:
            break
    return found


def _escaped(step: object) -> str:
    return str(step).replace("~", "~0").replace("/", "~1")


def validator_of(tool: Tool) -> Any | None:
    """The validator of the tool's parameters; None if there are none or they cannot be read."""
    if tool.parameters is None:
        return None
    if "validator" not in tool.__dict__:  # compiled once; the tool is frozen otherwise
        tool.__dict__["validator"] = _compile(tool.parameters)
    return tool.__dict__["validator"]


def _compile(schema: object) -> Any | None:
    readable: Any = _with_nullable(schema, 0)
    options = jsonschema_rs.FancyRegexOptions(
        backtrack_limit=_BACKTRACK_LIMIT, size_limit=_PATTERN_BYTES
    )
    for compiler in (jsonschema_rs.validator_for, jsonschema_rs.Draft7Validator):
        try:  # a schema of an older draft, such as a list in `items`, is no 2020-12 schema
            return compiler(readable, pattern_options=options, offline=True)
        except (ValueError, jsonschema_rs.ReferencingError):
            continue
    return None


_DEEPEST = 100  # jsonschema-rs gives up on deeper schemas as well
NAME_TO_SCHEMA = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
)
DATA = frozenset({"enum", "const", "default", "examples", "example"})


def _with_nullable(schema: object, depth: int) -> object:
    """The schema with OpenAPI's `nullable`, which JSON Schema does not have, written out."""
    if depth > _DEEPEST:
        return schema
    if isinstance(schema, list):
        return [_with_nullable(one, depth + 1) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    inner: dict[str, object] = {}
    for key, value in schema.items():
        if key in DATA:
            inner[key] = value
        elif key in NAME_TO_SCHEMA and isinstance(value, Mapping):
            inner[key] = {name: _with_nullable(one, depth + 1) for name, one in value.items()}
        else:
            inner[key] = _with_nullable(value, depth + 1)
    return _or_null(inner) if inner.get("nullable") is True else inner


def _or_null(schema: dict[str, object]) -> dict[str, object]:
    named, listed = schema.get("type"), schema.get("enum")
    if (
        isinstance(named, str)
        and (listed is None or isinstance(listed, list))
        and not schema.keys() & _COMBINING
    ):
        widened = schema | {"type": [named, "null"]}
        return widened if listed is None else widened | {"enum": [*listed, None]}
    return {"anyOf": [{k: v for k, v in schema.items() if k != "nullable"}, {"type": "null"}]}


_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "$ref", "const", "not", "if"})
