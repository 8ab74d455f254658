"""From a caller's JSON Schema to shapes, and the list of what they do not enforce.

All drafts are read at once: what one draft writes as `definitions`, `$recursiveRef`, a list in
`items` or OpenAPI's `nullable` is understood wherever it stands. The work is bounded in depth
and in the number of subschemas, so that a hostile schema costs milliseconds and is relaxed
to "any value" where it goes too far. Nothing raises: what cannot be read is relaxed, and the
caller's own schema still judges the result (validate.py).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from prime_inference.toolcalls.intersection import (
    MOST_COMPARED,
    MOST_GATHERED,
    Intersection,
    TooLarge,
    disjoint,
)
from prime_inference.toolcalls.keywords import OF_TYPE, TYPES, Schema, kinds_of
from prime_inference.toolcalls.references import References
from prime_inference.toolcalls.shapes import (
    ANY,
    ANY_ARRAY,
    ANY_RECORD,
    BOOLEAN,
    EVERY_TYPE,
    INTEGER,
    NEVER,
    NULL,
    NUMBER,
    TEXT,
    Anything,
    Choice,
    Kind,
    Record,
    Reference,
    Shape,
    Steps,
    TooManyKinds,
    Unfinished,
    choice,
    kinds,
    literal_types,
)

# Deeper nesting than this occurs in no schema that a person wrote; Python's own stack would
# allow about five times as much.
DEEPEST = 48

# OpenAI refuses more than 5,000 properties in all; four times that is read here.
MOST_SUBSCHEMAS = 20_000

# Longer lists are no choice but data; OpenAI's limit is 1,000 values in all of a schema.
MOST_VALUES = 2_000

# Alternatives that definitions get from the definitions they refer to, in all: each is written
# into the grammar once for every definition that leads to it. Schemas of syntax trees need 100.
MOST_ALTERNATIVES = 2_000

# A list longer than this tells nobody more; a hostile schema could ask for one note per keyword.
MOST_NOTES = 200


class Relaxation(msgspec.Struct, frozen=True):
    """A keyword that the grammar does not enforce; validation still does."""

    path: str  # JSON pointer to the schema that holds the keyword
    keyword: str
    why: str


class Normal(msgspec.Struct, frozen=True):
    """A schema in normal form."""

    shape: Shape
    definitions: dict[str, Shape]
    relaxed: tuple[Relaxation, ...]


_PLAIN: dict[str, Shape] = {
    "string": TEXT,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": BOOLEAN,
    "null": NULL,
    "array": ANY_ARRAY,
    "object": ANY_RECORD,
}

# Keywords that assert nothing. `format` and `content*` are annotations since draft 2019-09.
_ANNOTATIONS = frozenset(
    {
        "type", "description", "title", "default", "examples", "example", "deprecated",
        "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType",
        "contentSchema", "$comment", "$schema", "$id", "id", "$anchor", "$defs", "definitions",
    }
)  # fmt: skip

_NEVER_ENFORCED = {
    "not": "a grammar has no complement",
    "if": "a grammar does not decide by earlier values",
    "$dynamicRef": "followed as a plain $ref",
    "$recursiveRef": "followed as a plain $ref",
}


def normalise(schema: object) -> Normal:
    """The normal form of a schema document."""
    return _Normaliser(schema).result()


def normalise_arguments(schema: object) -> Normal:
    """The normal form of a tool's parameters: always an object. No schema means any object."""
    if schema is None:
        return Normal(shape=ANY_RECORD, definitions={}, relaxed=())
    normal = _Normaliser(schema).result()
    records = tuple(_records(kinds(normal.shape, normal.definitions)))
    if not records:
        why = Relaxation(path="", keyword="type", why="the schema admits no object")
        return Normal(ANY_RECORD, normal.definitions, (*normal.relaxed, why))
    return Normal(records, normal.definitions, normal.relaxed)


def _records(found: Iterable[Kind]) -> Iterable[Kind]:
    for kind in found:
        if isinstance(kind, Record):
            yield kind
        elif isinstance(kind, Anything):
            yield ANY_RECORD[0]
        elif isinstance(kind, Choice):
            objects = tuple(text for text in kind.texts if text.startswith("{"))
            if objects:
                yield Choice(objects)


class _Normaliser:
    def __init__(self, root: object) -> None:
        self._references = References(root)
        self._root = root
        self._definitions: dict[str, Shape] = {}
        self._open: set[str] = set()  # definitions being read: recursion comes back to them
        self._relaxed: dict[Relaxation, None] = {}  # in order, each once
        self._compared = Steps(MOST_COMPARED)
        self._intersection = Intersection(self._definitions, self._compared)
        self._left = MOST_SUBSCHEMAS
        self._gathered = MOST_ALTERNATIVES
        self._depth = 0

    def result(self) -> Normal:
        self._open.add("#")
        shape = self._shape(self._root, "")
        self._definitions["#"] = shape
        # Each from the definitions as they were read: what is flat already would be gathered
        # again by every way that leads to it.
        self._definitions |= {name: self._without_references(name) for name in self._definitions}
        return Normal(shape, self._definitions, tuple(self._relaxed))

    def _without_references(self, name: str) -> Shape:
        """A definition with no reference at its top: what is left cannot recurse leftwards."""
        shape = self._definitions[name]
        if not any(type(kind) is Reference for kind in shape):
            return shape
        try:
            flat = kinds(shape, self._definitions, min(self._gathered, MOST_GATHERED))
        except TooManyKinds:
            self._note(name, "$ref", "refers to too many alternatives")
            return ANY
        flat = tuple({id(kind): kind for kind in flat}.values())
        self._gathered -= len(flat)
        if flat:
            return flat
        self._note(name, "$ref", "refers only to itself")
        self._definitions[name] = ANY  # so does what refers to it, and it is told once
        return ANY

    def _note(self, path: str, keyword: str, why: str) -> None:
        if len(self._relaxed) < MOST_NOTES:
            self._relaxed[Relaxation(path, keyword, why)] = None

    def _shape(self, schema: object, path: str) -> Shape:
        """The shape of a subschema where a value stands: a property, an item, the root."""
        if type(schema) is dict:
            name = schema.get("type")
            if type(name) is str and name in _PLAIN:
                if schema.keys() <= _ANNOTATIONS:  # most properties of most tools
                    return _PLAIN[name]
                if name == "string" and "enum" in schema and schema.keys() <= _WORDS:
                    values = schema["enum"]
                    if _all_strings(values):
                        return (choice(values),)
        return _implied(self._read(schema, path))

    def _read(self, schema: object, path: str) -> Shape:
        """The shape of a subschema, exactly; without a type it admits all types."""
        if schema is True:
            return ANY
        if schema is False:
            return NEVER
        if not isinstance(schema, dict):
            self._note(path, "", "not a schema")
            return ANY
        self._left -= 1
        if self._left < 0 or self._depth >= DEEPEST:
            self._note(path, "", "too deep or too large")
            return ANY
        self._depth += 1
        try:  # the depth is that of the recursion, however it is left
            return self._combined(schema, path)
        finally:
            self._depth -= 1

    def _combined(self, schema: Schema, path: str) -> Shape:
        shape = self._typed(schema, path)
        if not schema.keys() <= _SIMPLE:
            for part in self._parts(schema, path):
                shape = self._both(shape, part, path)
            if schema.get("nullable") is True:
                shape = shape if NULL[0] in shape else shape + NULL
        return shape

    def _both(self, a: Shape, b: Shape, path: str) -> Shape:
        """The intersection. Where it is too much, the second is dropped and noted."""
        if a is ANY or b is ANY:
            return b if a is ANY else a
        try:
            return self._intersection.of(a, b)
        except TooLarge:
            self._note(path, "allOf", "too many combinations to merge")
        except Unfinished:
            self._note(path, "$ref", "siblings of a recursive reference are not merged")
        return b if any(isinstance(kind, Reference) for kind in b) else a

    def _typed(self, schema: Schema, path: str) -> Shape:
        """What `type` and the keywords of single types say."""
        named = schema.get("type")
        if isinstance(named, str) and named in TYPES:
            return kinds_of(named, schema, path, self._shape, self._note)
        if named is None:
            return self._untyped(schema, path)
        if not isinstance(named, (list, tuple)) or not all(name in TYPES for name in named):
            self._note(path, "type", "not the name of a type")
            return self._untyped(schema, path)
        found: list[Kind] = []
        for name in named:
            if name != "integer" or "number" not in named:
                found += kinds_of(name, schema, path, self._shape, self._note)
        return tuple(found)

    def _untyped(self, schema: Schema, path: str) -> Shape:
        if not any(schema.keys() & keywords for keywords in OF_TYPE.values()):
            return ANY
        found: list[Kind] = []
        for name in ("string", "number", "boolean", "null", "array", "object"):
            if schema.keys() & OF_TYPE.get(name, frozenset()):
                found += kinds_of(name, schema, path, self._shape, self._note)
            else:
                found += _PLAIN[name]
        return tuple(found)

    def _parts(self, schema: Schema, path: str) -> Iterable[Shape]:
        """What the keywords that combine say, each as a shape to intersect with."""
        for keyword, why in _NEVER_ENFORCED.items():
            if keyword in schema and (keyword != "if" or {"then", "else"} & schema.keys()):
                self._note(path, keyword, why)
        if "const" in schema:
            yield (choice((schema["const"],)),)
        if "enum" in schema:
            yield self._choice(schema["enum"], path)
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                yield self._referred(schema[keyword], path, keyword)
        for index, part in enumerate(self._list(schema, "allOf", path)):
            yield self._read(part, f"{path}/allOf/{index}")
        if "anyOf" in schema:
            yield self._union(schema, "anyOf", path)[0]
        if "oneOf" in schema:
            shape, branches = self._union(schema, "oneOf", path)
            self._note_overlap(branches, path)
            yield shape

    def _choice(self, values: object, path: str) -> Shape:
        if not isinstance(values, list) or len(values) > MOST_VALUES:
            self._note(path, "enum", "not a list, or too long")
            return ANY
        return (choice(values),) if values else NEVER

    def _list(self, schema: Schema, keyword: str, path: str) -> list[object]:
        parts = schema.get(keyword, [])
        if isinstance(parts, list):
            return parts
        self._note(path, keyword, "not a list")
        return []

    def _union(self, schema: Schema, keyword: str, path: str) -> tuple[Shape, list[Shape]]:
        parts = self._list(schema, keyword, path)
        if not parts:
            return ANY, []
        branches = [self._read(part, f"{path}/{keyword}/{i}") for i, part in enumerate(parts)]
        if schema.keys() <= _ANNOTATIONS | {keyword, "nullable"}:
            branches = [_implied(branch) for branch in branches]
        union = dict.fromkeys(kind for branch in branches for kind in branch)
        return tuple(union), branches

    def _note_overlap(self, branches: list[Shape], path: str) -> None:
        pairs = ((a, b) for i, a in enumerate(branches) for b in branches[i + 1 :])
        for count, (a, b) in enumerate(pairs):
            # 500 pairs are over 30 branches; telling each apart costs some microseconds.
            if count > 500 or not disjoint(a, b, self._definitions, self._compared):
                self._note(path, "oneOf", "read as anyOf: branches overlap")
                return

    def _referred(self, reference: object, path: str, keyword: str) -> Shape:
        found = self._references.resolve(reference)
        if found is None:
            self._note(path, keyword, "does not resolve inside the schema")
            return ANY
        name, target = found
        if name not in self._open and name not in self._definitions:
            self._open.add(name)
            self._definitions[name] = self._shape(target, name)
            self._open.discard(name)
        return (Reference(name),)


_WORDS = _ANNOTATIONS | {"enum"}
_SIMPLE = _ANNOTATIONS.union(*OF_TYPE.values())
_UNSAID = frozenset({TEXT[0], NUMBER[0], BOOLEAN[0], NULL[0], ANY_ARRAY[0], ANY_RECORD[0]})


def _all_strings(values: object) -> bool:
    return (
        isinstance(values, list)
        and 0 < len(values) <= MOST_VALUES
        and all(type(value) is str for value in values)
    )


def _implied(shape: Shape) -> Shape:
    """Narrows a schema without `type` to the types its keywords speak of.

    Strictly, `{"properties": ...}` admits a string too; nobody who writes it means that.
    """
    if len(shape) < len(_UNSAID):
        return shape
    said = tuple(kind for kind in shape if kind not in _UNSAID)
    plain = tuple(kind for kind in shape if not isinstance(kind, Reference))
    return said if said and literal_types(plain, {}) == EVERY_TYPE else shape
