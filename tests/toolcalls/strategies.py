"""Schemas that callers write, with values that fit them, and texts that models write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from prime_inference.toolcalls.tools import read_tools
from prime_inference.toolcalls.validate import check_arguments

Json = Any
Schema = dict[str, Any]

# Letters of several scripts, quotes, tags, entities, escapes, line breaks: what breaks parsers.
FRAGMENTS = [
    "", " ", "\n", "\t", "\r\n", '"', "'", "\\", "\\n", "\\u0041", "<", ">", "&lt;", "&amp;quot;",
    "é", "上海", "🎉", "\u2028", "\x00", "\x7f", "null", "None", "true", "True", "0", "-1", "1e5",
    "123abc", "{", "}", "[]", '{"a": 1}', "<b>bold</b>", "<arg_key>", "</arg_valu", "</tool_call",
    "<tool_call>", "<think>", "</think>", "<function=", "<|im_end|>", "a", "word", "x\n  y",
]  # fmt: skip

texts = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)

integers = st.one_of(st.integers(-20, 20), st.integers(-(2**70), 2**70))

# Magnitudes that a grammar writes; the exceptions are in docs/tool-calls.md.
floats = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e250, max_value=1e250)

names = st.one_of(
    st.sampled_from(["path", "text", "n", "a", "ab", "abc", "arguments", "name", "type", "in-put"]),
    st.text("abcXYZ019_-.", min_size=1, max_size=8),
)

PATTERNS = {
    "^[a-z]{1,5}$": ["a", "abcde"],
    "^\\d{4}-\\d{2}$": ["2026-01", "0000-99"],
    "^(red|green)$": ["red", "green"],
    "^[^\\s]+$": ["x", "é/ü", "a=b"],
    "x": ["x", "axb", "x\n"],
    "^[A-Z][a-z]*( [A-Z][a-z]*)?$": ["Ada", "Ada Lovelace"],
}


@st.composite
def strings(draw: st.DrawFn) -> tuple[Schema, st.SearchStrategy[Json]]:
    match draw(st.sampled_from(["plain", "plain", "plain", "lengths", "pattern", "format"])):
        case "lengths":
            low = draw(st.integers(0, 4))
            high = draw(st.none() | st.integers(low, low + 8))
            schema: Schema = {"type": "string", "minLength": low}
            if high is not None:
                schema["maxLength"] = high
            alphabet = st.characters(exclude_categories=["Cs"], exclude_characters="<")
            return schema, st.text(
                alphabet, min_size=low, max_size=low + 9 if high is None else high
            )
        case "pattern":
            pattern = draw(st.sampled_from(sorted(PATTERNS)))
            return {"type": "string", "pattern": pattern}, st.sampled_from(PATTERNS[pattern])
        case "format":
            return {"type": "string", "format": "date"}, st.just("2026-01-15")
        case _:
            return {"type": "string", "description": "Text."}, texts


@st.composite
def numbers(draw: st.DrawFn) -> tuple[Schema, st.SearchStrategy[Json]]:
    if draw(st.booleans()):
        if draw(st.booleans()):
            return {"type": "integer"}, integers
        low = draw(st.integers(-1000, 1000))
        high = low + draw(st.integers(0, 1200))
        return {"type": "integer", "minimum": low, "maximum": high}, st.integers(low, high)
    if draw(st.booleans()):
        return {"type": "number"}, st.one_of(integers, floats)
    least = draw(st.integers(-50, 50)) / 4
    return {"type": "number", "minimum": least}, st.integers(0, 4000).map(lambda n: least + n / 8)


scalars = st.one_of(
    strings(),
    strings(),
    numbers(),
    st.just(({"type": "boolean"}, st.booleans())),
    st.just(({"type": "null"}, st.none())),
)


@st.composite
def choices(draw: st.DrawFn) -> tuple[Schema, st.SearchStrategy[Json]]:
    plain = st.one_of(st.sampled_from(["a", "b", "null", "None", "x y", "é"]), st.integers(-5, 5))
    kind = draw(st.sampled_from(["words", "mixed", "const"]))
    if kind == "const":
        value = draw(plain)
        return {"const": value}, st.just(value)
    pool = (
        st.sampled_from(["a", "b", "<c>", "d\n"])
        if kind == "words"
        else st.one_of(plain, st.none())
    )
    values = draw(st.lists(pool, min_size=1, max_size=4, unique_by=repr))
    schema: Schema = {"enum": values}
    if kind == "words":
        schema["type"] = "string"
    return schema, st.sampled_from(values)


@st.composite
def unions(draw: st.DrawFn, inner: Any) -> tuple[Schema, st.SearchStrategy[Json]]:
    schema, values = draw(inner)
    if "type" in schema and isinstance(schema["type"], str) and draw(st.booleans()):
        if draw(st.booleans()) and "enum" not in schema and schema["type"] != "null":
            return schema | {"type": [schema["type"], "null"]}, st.none() | values
        return schema | {"nullable": True}, st.none() | values
    other, others = draw(scalars)
    keyword = draw(st.sampled_from(["anyOf", "oneOf"]))
    return {keyword: [schema, other]}, values | others


@st.composite
def arrays(draw: st.DrawFn, inner: Any) -> tuple[Schema, st.SearchStrategy[Json]]:
    schema, values = draw(inner)
    low = draw(st.integers(0, 2))
    high = draw(st.none() | st.integers(low, low + 2))
    array: Schema = {"type": "array", "items": schema, "minItems": low}
    if high is not None:
        array["maxItems"] = high
    return array, st.lists(values, min_size=low, max_size=low + 2 if high is None else high)


@st.composite
def objects(draw: st.DrawFn, inner: Any) -> tuple[Schema, st.SearchStrategy[Json]]:
    properties = draw(st.dictionaries(names, inner, max_size=4))
    required = [name for name in properties if draw(st.booleans())]
    schema: Schema = {
        "type": "object",
        "properties": {name: one for name, (one, _) in properties.items()},
        "required": required,
    }
    free = draw(st.sampled_from([None, None, False, {"type": "integer"}, {"type": "boolean"}]))
    if free is not None:
        schema["additionalProperties"] = free

    @st.composite
    def values(draw: st.DrawFn) -> Json:
        written = {
            name: draw(value)
            for name, (_, value) in properties.items()
            if name in required or draw(st.booleans())
        }
        if isinstance(free, dict):
            one = st.booleans() if free["type"] == "boolean" else st.integers(-9, 9)
            more = draw(st.dictionaries(names, one, max_size=2))
            written |= {name: value for name, value in more.items() if name not in properties}
        return written

    return schema, values()


schemas: st.SearchStrategy[tuple[Schema, st.SearchStrategy[Json]]] = st.recursive(
    scalars | choices(), lambda inner: unions(inner) | arrays(inner) | objects(inner), max_leaves=6
)


@st.composite
def references(draw: st.DrawFn) -> tuple[Schema, st.SearchStrategy[Json]]:
    """Parameters of which one is behind a reference, merged, or recursive."""
    inner, values = draw(scalars | choices() | objects(scalars))
    kind = draw(st.sampled_from(["ref", "allOf", "tree"]))
    if kind == "ref":
        schema: Schema = {"properties": {"p": {"$ref": "#/$defs/P"}}, "$defs": {"P": inner}}
        return schema | {"type": "object"}, st.fixed_dictionaries({"p": values})
    if kind == "allOf":
        part: Schema = {"allOf": [inner, {"description": "Merged."}]}
        return {"type": "object", "properties": {"p": part}}, st.fixed_dictionaries({"p": values})
    tree: Schema = {
        "type": "object",
        "properties": {"v": inner, "sub": {"type": "array", "items": {"$ref": "#/$defs/T"}}},
        "required": ["v"],
        "additionalProperties": False,
    }
    trees = st.recursive(
        st.fixed_dictionaries({"v": values}),
        lambda sub: st.tuples(values, st.lists(sub, max_size=2)).map(
            lambda pair: {"v": pair[0], "sub": pair[1]}
        ),
        max_leaves=4,
    )
    schema = {"type": "object", "properties": {"t": {"$ref": "#/$defs/T"}}, "$defs": {"T": tree}}
    return schema, st.fixed_dictionaries({"t": trees})


parameters = st.one_of(objects(schemas), objects(schemas), references())


@st.composite
def tool_calls(draw: st.DrawFn) -> tuple[list[Json], list[tuple[str, Mapping[str, Json]]]]:
    """Tools, and calls of them with arguments that fit."""
    drawn = draw(st.lists(parameters, min_size=1, max_size=3))
    tools = [
        {"type": "function", "function": {"name": f"tool_{i}", "parameters": schema}}
        for i, (schema, _) in enumerate(drawn)
    ]
    used = draw(st.lists(st.integers(0, len(drawn) - 1), min_size=1, max_size=3))
    calls = [(f"tool_{i}", draw(drawn[i][1])) for i in used]
    read = read_tools(tools)
    # What a oneOf or an allOf allows is easier tested than built.
    assume(all(not check_arguments(json.dumps(a), read.by_name[name]) for name, a in calls))
    return tools, calls


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """The text in pieces."""
    places = draw(st.lists(st.integers(0, len(text)), max_size=12).map(sorted))
    edges = [0, *places, len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def is_ambiguous(value: Json, schema: Schema, root: Schema) -> bool:
    """Whether a tag does not show what the value is: a string that reads like something else,
    where something else is allowed too. Published in docs/tool-calls.md."""
    if not isinstance(value, str) or _only_strings(schema, root):
        return False
    if value in ("True", "False", "None"):
        return True
    try:
        return not isinstance(json.loads(value.strip()), str)
    except ValueError:
        return False


def _only_strings(schema: Schema, root: Schema) -> bool:
    if "$ref" in schema:
        return _only_strings(root["$defs"]["P"], root)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return all(
                _only_strings(one, root) for one in schema[keyword] if "description" not in one
            )
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return all(isinstance(one, str) for one in values) and not schema.get("nullable")
    return schema.get("type") == "string" and not schema.get("nullable")


def pieces_of_markup(markers: Sequence[str]) -> st.SearchStrategy[str]:
    """Text that is nearly a call: markers, parts of them, names, JSON, prose."""
    parts = [
        *markers, *(m[: len(m) // 2] for m in markers), "f", "now", "nope", '"', "{", "}", ",", ":",
        '{"name": "f", "arguments": ', '{"name": "f", "parameters": ', '{"v": 1}', "<", ">", "\n",
        " ", "text", "functions.f:0", "v", "=v>", "null", "\\", "[", "]", "</think>", "<think>",
    ]  # fmt: skip
    return st.lists(st.sampled_from(parts), max_size=14).map("".join)
