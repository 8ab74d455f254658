"""Sets of tools with schemas of every kind that callers write, made from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

Json = Any

WORDS = ["city", "days", "path", "mode", "limit", "tags", "query", "unit", "owner", "level"]
NAMES = ["search", "read_file", "get_weather", "create-ticket", "db.query", "move", "paint", "now"]


def tool_set(seed: int) -> list[dict[str, Any]]:
    """One to four tools, in OpenAI's shape; the same for the same seed."""
    chance = random.Random(seed)
    names = chance.sample(NAMES, chance.randint(1, 4))
    return [
        {"type": "function", "function": {"name": name, "parameters": _parameters(chance)}}
        for name in names
    ]


def _parameters(chance: random.Random) -> Json:
    """Parameters of a tool; one in three has a definition that it refers to."""
    schema = _record(chance, depth=0)
    if chance.random() < 1 / 3:
        schema["properties"]["shared"] = {"$ref": "#/$defs/Shared"}
        schema["required"].append("shared")
        schema["$defs"] = {"Shared": _record(chance, depth=1)}
    return schema


def _record(chance: random.Random, depth: int) -> Json:
    names = chance.sample(WORDS, chance.randint(0, 4 - 2 * depth))
    return {
        "type": "object",
        "properties": {name: _schema(chance, depth) for name in names},
        "required": [name for name in names if chance.random() < 0.7],
        "additionalProperties": False,
    }


def _schema(chance: random.Random, depth: int) -> Json:
    leaf = chance.choice(SCALARS)(chance)
    if depth > 1 or chance.random() < 0.6:
        return leaf
    inner = _schema(chance, depth + 1)
    match chance.choice(["array", "object", "nullable", "union", "merged"]):
        case "array":
            return {"type": "array", "items": inner, "maxItems": chance.randint(1, 3)}
        case "object":
            return _record(chance, depth + 1)
        case "nullable":
            return {"anyOf": [inner, {"type": "null"}]}
        case "union":
            return {"oneOf": [{"type": "boolean"}, {"type": "string", "enum": ["on", "off"]}]}
        case _:
            return {"allOf": [leaf, {"description": "Merged with what stands beside it."}]}


def _bounded(chance: random.Random) -> Json:
    low = chance.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + chance.randint(0, 500)}


SCALARS: list[Callable[[random.Random], Json]] = [
    lambda chance: {"type": "string", "description": "A word or two."},
    lambda chance: {"type": "string", "minLength": 1, "maxLength": chance.randint(1, 30)},
    lambda chance: {"type": "string", "enum": chance.sample(["red", "green", 'a "b"', "<c>"], 2)},
    lambda chance: {"enum": chance.sample(["auto", 1, 2.5, True, None], 3)},
    lambda chance: {"const": chance.choice(["fixed", 7])},
    lambda chance: {"type": "string", "pattern": "^#[0-9a-f]{6}$"},
    lambda chance: {"type": "string", "pattern": "^[A-Z][a-z]{1,9}(-[0-9]{1,3})?$"},
    lambda chance: {"type": "string", "format": "date"},
    lambda chance: {"type": "integer"},
    _bounded,
    lambda chance: {"type": "number", "minimum": 0, "maximum": 10},
    lambda chance: {"type": "boolean"},
    lambda chance: {"type": ["string", "null"], "maxLength": 12},
]
