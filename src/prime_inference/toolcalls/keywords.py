"""The keywords of JSON Schema that speak of one type, read into kinds.

Each reader takes the schema, its path, and two callables: one that normalises a subschema,
one that records what a grammar will not enforce. A malformed keyword is recorded and ignored,
as validators ignore or refuse it by their own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from prime_inference.toolcalls.shapes import (
    ANY,
    BOOLEAN,
    NEVER,
    NULL,
    Array,
    Kind,
    Number,
    Record,
    Shape,
    Text,
    whole,
)

Schema: TypeAlias = Mapping[str, object]
Note: TypeAlias = Callable[[str, str, str], None]  # path, keyword, why it is not enforced


class Sub(Protocol):
    """Normalises a subschema found at a path."""

    def __call__(self, schema: object, path: str) -> Shape: ...


TYPES = ("null", "boolean", "string", "integer", "number", "array", "object")

OF_TYPE: dict[str, frozenset[str]] = {
    "string": frozenset({"minLength", "maxLength", "pattern"}),
    "number": frozenset(
        {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    "array": frozenset(
        {
            "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
            "contains", "minContains", "maxContains", "unevaluatedItems",
        }
    ),
    "object": frozenset(
        {
            "properties", "required", "additionalProperties", "patternProperties",
            "propertyNames", "minProperties", "maxProperties", "dependentRequired",
            "dependentSchemas", "dependencies", "unevaluatedProperties",
        }
    ),
}  # fmt: skip

# Patterns that every string matches; as patternProperties they are additionalProperties.
EVERYTHING = frozenset({"", ".*", "^.*", ".*$", "^.*$", ".+", "^.+$", "^"})


def kinds_of(name: str, schema: Schema, path: str, sub: Sub, note: Note) -> Shape:
    """The kinds of one type under the schema's keywords; none if they contradict each other."""
    kind: Kind | None
    match name:
        case "null":
            return NULL
        case "boolean":
            return BOOLEAN
        case "string":
            kind = read_text(schema, path, note)
        case "number" | "integer":
            kind = read_number(schema, path, note, integer=name == "integer")
        case "array":
            kind = read_array(schema, path, sub, note)
        case _:
            kind = read_record(schema, path, sub, note)
    return NEVER if kind is None else (kind,)


def read_text(schema: Schema, path: str, note: Note) -> Text | None:
    shortest = _count(schema, "minLength", path, note) or 0
    longest = _count(schema, "maxLength", path, note)
    pattern = schema.get("pattern")
    if pattern is not None and not isinstance(pattern, str):
        note(path, "pattern", "not a string")
        pattern = None
    if longest is not None and longest < shortest:
        return None
    patterns = () if pattern is None or pattern in EVERYTHING else (pattern,)
    return Text(shortest=shortest, longest=longest, patterns=patterns)


def read_number(schema: Schema, path: str, note: Note, *, integer: bool) -> Number | None:
    low, above = _bound(schema, "minimum", "exclusiveMinimum", path, note)
    high, below = _bound(schema, "maximum", "exclusiveMaximum", path, note)
    step = schema.get("multipleOf")
    if step == 1 and not isinstance(step, bool):
        integer = True
    elif step is not None:
        note(path, "multipleOf", "a grammar cannot divide")
    number = Number(low=low, high=high, above_low=above, below_high=below)
    if integer:
        return whole(number)
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        return None
    return number


def _bound(
    schema: Schema, inclusive: str, exclusive: str, path: str, note: Note
) -> tuple[float | None, bool]:
    """The tighter of an inclusive and an exclusive bound, and whether it is exclusive."""
    closed = _number(schema, inclusive, path, note)
    strict = schema.get(exclusive)
    if isinstance(strict, bool):  # draft 4: a flag beside the inclusive bound
        return closed, strict and closed is not None
    opened = _number(schema, exclusive, path, note)
    if opened is None:
        return closed, False
    if closed is None or (opened >= closed if inclusive == "minimum" else opened <= closed):
        return opened, True
    return closed, False


MAX_BITS = 512  # of an integer: beyond, it is no float any more


def _number(schema: Schema, keyword: str, path: str, note: Note) -> float | None:
    value = schema.get(keyword)
    if value is None:
        return None
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        note(path, keyword, "too large a number")
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        note(path, keyword, "not a number")
        return None
    return value


def _count(schema: Schema, keyword: str, path: str, note: Note) -> int | None:
    value = _number(schema, keyword, path, note)
    if value is None:
        return None
    if value < 0 or value != int(value):
        note(path, keyword, "not a count")
        return None
    return int(value)


def read_array(schema: Schema, path: str, sub: Sub, note: Note) -> Array | None:
    for keyword in ("uniqueItems", "contains", "minContains", "maxContains"):
        if schema.get(keyword) not in (None, False):
            note(path, keyword, "a grammar does not remember items")
    if schema.get("unevaluatedItems") not in (None, True):
        note(path, "unevaluatedItems", "not tracked across subschemas")
    items = schema.get("items", True)
    prefix = schema.get("prefixItems")
    rest = "items"
    if isinstance(items, list):  # drafts 4 to 2019-09 write a tuple this way
        prefix, items, rest = items, schema.get("additionalItems", True), "additionalItems"
    first = _tuple(prefix, path, sub, note)
    shortest = _count(schema, "minItems", path, note) or 0
    longest = _count(schema, "maxItems", path, note)
    shape = ANY if items is True else sub(items, f"{path}/{rest}")
    if shape == NEVER:
        longest = len(first) if longest is None else min(longest, len(first))
    if longest is not None and longest < shortest:
        return None
    return Array(items=shape, prefix=first, shortest=shortest, longest=longest)


def _tuple(prefix: object, path: str, sub: Sub, note: Note) -> tuple[Shape, ...]:
    if prefix is None:
        return ()
    if not isinstance(prefix, list):
        note(path, "prefixItems", "not a list")
        return ()
    return tuple(sub(one, f"{path}/prefixItems/{index}") for index, one in enumerate(prefix))


def read_record(schema: Schema, path: str, sub: Sub, note: Note) -> Record | None:
    properties = schema.get("properties")
    declared: dict[str, Shape] = {}
    if isinstance(properties, dict):
        at = path + "/properties/"
        declared = {name: sub(one, at + name) for name, one in properties.items()}
    elif properties is not None:
        note(path, "properties", "not an object")
    free, names, asked_for = _read_free(schema, path, sub, note)
    required = _read_required(schema, path, note)
    for name in required:
        if name not in declared:
            declared[name] = free
    fewest = _count(schema, "minProperties", path, note) or 0
    if any(declared[name] == NEVER for name in required):
        return None
    record = Record(
        properties=tuple(declared.items()),
        required=frozenset(required),
        free=free,
        free_names=names,
        asked_for=asked_for,
        fewest=fewest,
    )
    if not schema.keys() <= _FULLY_READ:
        _note_rest(schema, record, path, note)
    return record


_FULLY_READ = frozenset(
    {"type", "properties", "required", "additionalProperties", "description", "title", "$schema"}
)


def _note_rest(schema: Schema, record: Record, path: str, note: Note) -> None:
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        if schema.get(keyword):
            note(path, keyword, "a grammar does not look back at other properties")
    if schema.get("unevaluatedProperties") not in (None, True) and record.offers_free:
        note(path, "unevaluatedProperties", "not tracked across subschemas")
    most = _count(schema, "maxProperties", path, note)
    if most is not None and (record.offers_free or most < len(record.properties)):
        note(path, "maxProperties", "a grammar does not count properties")
    if record.fewest > max(1, len(record.required)):
        note(path, "minProperties", "a grammar only tells none from some")


def _read_required(schema: Schema, path: str, note: Note) -> list[str]:
    required = schema.get("required", ())
    if isinstance(required, bool):  # draft 3 wrote it inside the property
        return []
    if not isinstance(required, (list, tuple)) or not all(isinstance(n, str) for n in required):
        note(path, "required", "not a list of names")
        return []
    return list(required)


def _read_free(
    schema: Schema, path: str, sub: Sub, note: Note
) -> tuple[Shape, tuple[str, ...], bool]:
    """Shape and name patterns of properties not declared, and whether they are asked for."""
    additional = schema.get("additionalProperties")
    by_pattern = schema.get("patternProperties")
    names: tuple[str, ...] = ()
    if isinstance(by_pattern, dict) and len(by_pattern) == 1 and not additional:
        # A map from names of a certain form; the usual way to write one before draft 4's
        # additionalProperties, and what some generators still emit.
        [(pattern, one)] = by_pattern.items()
        names = () if pattern in EVERYTHING else (pattern,)
        free, asked_for = sub(one, f"{path}/patternProperties/{pattern}"), True
        if names and schema.get("properties"):
            note(path, "patternProperties", "not offered beside declared properties")
            asked_for = False
    else:
        if by_pattern:
            note(path, "patternProperties", "only a single pattern without others is read")
        asked_for = additional is not None and additional is not False
        free = ANY if additional is None else sub(additional, f"{path}/additionalProperties")
    name_schema = schema.get("propertyNames")
    if isinstance(name_schema, dict):
        pattern = name_schema.get("pattern")
        if isinstance(pattern, str):
            names += (pattern,)
        if name_schema.keys() - {"pattern", "type", "description"}:
            note(path, "propertyNames", "only its pattern is read")
    return free, names, asked_for
