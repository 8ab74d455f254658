"""Limits on what a request may make the gateway or an engine do.

vLLM's advisories show what unbounded fields cost: `n` (memory), schemas (grammar compiler),
logit biases and stop strings (per-token work). Each number has its reason beside it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from prime_inference.domain.errors import InvalidRequest

MAX_CHOICES = 8  # each is a sequence of its own in the engine
MAX_MESSAGES = 8192  # the longest agent sessions published have under 2,000 turns
MAX_TOOLS = 256  # OpenAI allows 128; agents with several tool servers pass it
MAX_STOPS = 16  # OpenAI allows 4, vLLM is commonly given up to 16
MAX_STOP_CHARACTERS = 256
MAX_LOGIT_BIASES = 1024  # OpenAI's own limit is 300 in practice
MAX_TOP_LOGPROBS = 20  # OpenAI's limit
MAX_SCHEMA_BYTES = 256 * 1024
MAX_SCHEMA_DEPTH = 64  # OpenAI allows 10 levels of properties, each about 4 levels of JSON
MAX_ALTERNATIVES = 1000  # OpenAI's limit on enum values; grammars take time for each
MAX_PROMPTS = 128  # of a completions request, times its `n`
MAX_INPUTS = 2048  # OpenAI's limit for embeddings
MAX_DIMENSIONS = 16_384  # of one embedding; the largest models give 8,192
MAX_SCHEMAS_REMEMBERED = 4096  # 32 bytes each

_json = msgspec.json.Decoder()


class SchemaBounds:
    """Checks JSON schemas once: an agent sends the same tools on every turn.

    Remembers digests of the schemas that passed, never their text.
    """

    def __init__(self) -> None:
        self._passed: OrderedDict[bytes, None] = OrderedDict()

    def check(self, schema: msgspec.Raw, param: str) -> None:
        """Raises InvalidRequest when the schema is no object, too large, too deep or too wide."""
        raw = bytes(schema)
        if len(raw) > MAX_SCHEMA_BYTES:
            raise InvalidRequest(f"'{param}' is larger than {MAX_SCHEMA_BYTES} bytes.", param=param)
        digest = hashlib.sha256(raw).digest()
        if digest in self._passed:
            self._passed.move_to_end(digest)
            return
        try:
            value = _json.decode(raw)
        except (ValueError, RecursionError):  # the request's decoder passes over what is inside
            raise InvalidRequest(f"'{param}' is not valid JSON.", param=param) from None
        if not isinstance(value, dict):
            raise InvalidRequest(f"'{param}' must be a JSON schema object.", param=param)
        if nesting(value) > MAX_SCHEMA_DEPTH:
            raise InvalidRequest(
                f"'{param}' is nested deeper than {MAX_SCHEMA_DEPTH} levels.", param=param
            )
        if alternatives(value) > MAX_ALTERNATIVES:
            raise InvalidRequest(
                f"'{param}' has more than {MAX_ALTERNATIVES} enum values and branches.", param=param
            )
        self._passed[digest] = None
        if len(self._passed) > MAX_SCHEMAS_REMEMBERED:
            self._passed.popitem(last=False)


def nesting(value: object) -> int:
    """Depth of objects and arrays in a JSON value: 0 for a scalar, 1 for `{}`."""
    return sum(1 for _ in _layers(value))


def alternatives(schema: object) -> int:
    """How many values and branches a grammar must tell apart: all of `enum`, `anyOf`, `oneOf`."""
    return sum(
        len(choices)
        for layer in _layers(schema)
        for item in layer
        if isinstance(item, dict)
        for keyword in ("enum", "anyOf", "oneOf")
        if isinstance(choices := item.get(keyword), list)
    )


UNENFORCED = frozenset({
    "multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "not", "if", "then",
    "else", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames",
    "minProperties", "maxProperties", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
"""What JSON Schema can ask of a value and the grammar of a schema does not see to."""


def unenforced(schema: object) -> str:
    """The first keyword in a schema that no grammar enforces; empty if there is none."""
    waiting = [schema]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, dict):
            continue
        if found := sorted(UNENFORCED & item.keys()):
            return found[0]
        for keyword in ("properties", "$defs", "definitions"):
            if isinstance(named := item.get(keyword), dict):
                waiting.extend(named.values())
        for keyword in ("allOf", "anyOf", "oneOf", "prefixItems"):
            if isinstance(listed := item.get(keyword), list):
                waiting.extend(listed)
        waiting += [item.get("items"), item.get("additionalProperties")]
    return ""


def _layers(value: object) -> Iterator[list[dict[str, Any] | list[Any]]]:
    """The objects and arrays of a JSON value, outermost first, without recursion."""
    layer = [value]
    while containers := [item for item in layer if isinstance(item, dict | list)]:
        yield containers
        layer = [
            child
            for item in containers
            for child in (item.values() if isinstance(item, dict) else item)
        ]
