"""The smallest value that a JSON schema of the simple kind accepts.

Covers what tools and `response_format` schemas are made of: types, properties, required,
enum, const, items, minItems, minimum, minLength, anyOf/oneOf/allOf, `$ref` to a local
definition. Patterns and formats are not solved; a schema that needs them gets a value that
is right in its type only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 16  # a recursive schema ends here with null


def minimal_instance(schema: Mapping[str, Any]) -> Any:
    """A value of `schema`: optional properties are left out, strings are words."""
    return _instance(schema, schema, MAX_DEPTH)


def _instance(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth == 0:
        return None
    if "$ref" in schema:
        return _instance(_resolve(str(schema["$ref"]), root), root, depth - 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf"):
        if schema.get(choice):
            return _instance(schema[choice][0], root, depth - 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            merged.update(part)
        return _instance(merged, root, depth - 1)
    return _of_type(schema, root, depth)


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties = schema.get("properties") or {}
            names = schema.get("required", ())
            return {n: _instance(properties.get(n, {}), root, depth - 1) for n in names}
        case "array":
            count = int(schema.get("minItems", 0))
            return [_instance(schema.get("items", {}), root, depth - 1) for _ in range(count)]
        case "integer" | "number":
            return _number(schema)
        case "boolean":
            return True
        case "null":
            return None
        case _:
            return "word".ljust(int(schema.get("minLength", 0)), "s")[: schema.get("maxLength")]


def _number(schema: Mapping[str, Any]) -> Any:
    if "minimum" in schema:
        return schema["minimum"]
    if "exclusiveMinimum" in schema:
        return schema["exclusiveMinimum"] + 1
    return min(0, schema.get("maximum", 0), schema.get("exclusiveMaximum", 1) - 1)


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        if step:
            node = node.get(step) if isinstance(node, Mapping) else None
    return node
