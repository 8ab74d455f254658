"""How much work it can be to validate arguments, told from the schema before the work begins.

With only the keywords named here a validator looks at each place of the arguments once for each
subschema. With others the work has no useful bound: two references in an `anyOf`, thirty levels
deep, are a billion steps, and so is `unevaluatedProperties`, which asks every subschema beside
it anew at each level. A keyword that is not known is taken for one of these.
"""

from __future__ import annotations

import msgspec

from prime_inference.toolcalls.tools import Tool
from prime_inference.toolcalls.validate import DATA, NAME_TO_SCHEMA, Problem, check_arguments

# Bytes of schema times bytes of arguments: 2 KB by 2 KB, or 200 bytes by 20 KB. The worst such
# pair found, objects against an enum of objects, took 8 ms; a usual one takes microseconds.
MOST_WORK = 4 * 1024 * 1024

_LARGEST_SCHEMA = 64 * 1024  # a larger one is not even looked through
_LARGEST_ARGUMENTS = 64 * 1024

_LINEAR = frozenset(
    {
        "type", "enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum",
        "exclusiveMaximum", "minLength", "maxLength", "items", "prefixItems", "additionalItems",
        "minItems", "maxItems", "contains", "minContains", "maxContains", "properties", "required",
        "additionalProperties", "propertyNames", "minProperties", "maxProperties",
        "dependentRequired", "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not",
        "if", "then", "else", "nullable", "format", "title", "description", "default", "example",
        "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment", "$defs",
        "definitions", "strict", "contentEncoding", "contentMediaType",
    }
)  # fmt: skip
_NAMES = NAME_TO_SCHEMA | {"dependencies"}


def is_little_work(arguments: str, tool: Tool) -> bool:
    """Whether validating these arguments takes milliseconds at most, whatever they are."""
    size = _linear_size(tool)
    if size is None or len(arguments) > _LARGEST_ARGUMENTS:
        return False
    return size * len(arguments) <= MOST_WORK


def check_little(arguments: str, tool: Tool) -> tuple[Problem, ...]:
    """What is wrong with the arguments, as far as it is little work to tell.

    Calls that may be much work are not judged here, but where the work can be ended.
    """
    return check_arguments(arguments, tool) if is_little_work(arguments, tool) else ()


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
            # Older drafts check formats; one is to be a pattern, which takes long to compile.
            if not one.keys() <= _LINEAR or one.get("format") == "regex":
                return True
            for key, value in one.items():
                if key in _NAMES and isinstance(value, dict):
                    rest += value.values()
                elif key not in DATA:
                    rest.append(value)
    return False
