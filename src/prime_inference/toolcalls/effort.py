"""How much work it can be to validate arguments, told from the schema before the work begins.

Without references and patterns a validator looks at each place of the arguments once for each
subschema. With them the work has no useful bound: two references in an `anyOf`, thirty levels
deep, are a billion steps.
"""

from __future__ import annotations

import msgspec

from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import DATA, NAME_TO_SCHEMA

# Bytes of schema times bytes of arguments: 2 KB by 2 KB, or 200 bytes by 20 KB. The worst such
# pair found, objects against an enum of objects, took 8 ms; a usual one takes microseconds.
MOST_WORK = 4 * 1024 * 1024

_LARGEST_SCHEMA = 64 * 1024  # a larger one is not even looked through
_LARGEST_ARGUMENTS = 64 * 1024

_UNBOUNDED = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties", "uniqueItems"}
)


def is_little_work(arguments: str, tool: Tool) -> bool:
    """Whether validating these arguments takes milliseconds at most, whatever they are."""
    size = _linear_size(tool)
    if size is None or len(arguments) > _LARGEST_ARGUMENTS:
        return False
    return size * len(arguments) <= MOST_WORK


def _linear_size(tool: Tool) -> int | None:
    """The size of the schema in bytes; None if the work is not linear in it."""
    if "linear_size" not in tool.__dict__:  # found once; the tool is frozen otherwise
        size = len(msgspec.json.encode(tool.parameters))
        linear = size <= _LARGEST_SCHEMA and not _is_unbounded(tool.parameters)
        tool.__dict__["linear_size"] = size if linear else None
    found: int | None = tool.__dict__["linear_size"]
    return found


def _is_unbounded(schema: object) -> bool:
    rest = [schema]
    while rest:
        one = rest.pop()
        if isinstance(one, list):
            rest += one
        elif isinstance(one, dict):
            if one.keys() & _UNBOUNDED:
                return True
            for key, value in one.items():
                if key in NAME_TO_SCHEMA and isinstance(value, dict):
                    rest += value.values()
                elif key not in DATA:
                    rest.append(value)
    return False
