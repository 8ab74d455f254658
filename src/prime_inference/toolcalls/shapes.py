"""The normal form of a JSON Schema: a shape is a tuple of kinds, any of which may match.

Eight kinds are enough for what a grammar can enforce. A shape without kinds matches
nothing; `ANY` matches every JSON value. Shapes hold no references to the schema they came
from, except `Reference`, which names an entry of the `Definitions` they were built with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TypeAlias

import msgspec


class Anything(msgspec.Struct, frozen=True, gc=False):
    """Every JSON value."""


class Choice(msgspec.Struct, frozen=True, dict=True):
    """One of these values, each as JSON text: `enum`, `const`, null, the booleans.

    As text, because to Python `True == 1` and `1 == 1.0`, and to JSON only the latter.
    """

    texts: tuple[str, ...]

    @cached_property
    def scalars(self) -> frozenset[tuple[bool, object]]:
        """Those that are no arrays or objects, each with whether it is a boolean."""
        values = self.values()
        return frozenset((isinstance(one, bool), one) for one in values if _is_scalar(one))

    @cached_property
    def containers(self) -> list[tuple[int, object]]:
        """The others, each with the length of its text."""
        pairs = zip(self.texts, self.values(), strict=True)
        return [(len(text), one) for text, one in pairs if not _is_scalar(one)]

    def values(self) -> list[object]:
        return [msgspec.json.decode(text) for text in self.texts]


class Text(msgspec.Struct, frozen=True, gc=False):
    """A string; lengths in code points, patterns in ECMA 262 syntax, all of which must match."""

    shortest: int = 0
    longest: int | None = None
    patterns: tuple[str, ...] = ()


class Number(msgspec.Struct, frozen=True, gc=False):
    """A number within inclusive or exclusive bounds; bounds of integers are inclusive."""

    integer: bool = False
    low: int | float | None = None
    high: int | float | None = None
    above_low: bool = False  # the lower bound itself is excluded
    below_high: bool = False


class Array(msgspec.Struct, frozen=True, gc=False):
    """`prefix` in order, then `items`; `items` without kinds closes the array."""

    items: Shape
    prefix: tuple[Shape, ...] = ()
    shortest: int = 0
    longest: int | None = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """An object: declared properties in the caller's order, then free ones.

    Every required name is declared. `free` is the shape of a property that is not declared and
    `free_names` are patterns its name must match. `asked_for` says whether the caller asked for
    such properties; a grammar lets the model write them only then, or where nothing is declared.
    """

    properties: tuple[tuple[str, Shape], ...] = ()
    required: frozenset[str] = frozenset()
    free: Shape = ()
    free_names: tuple[str, ...] = ()
    asked_for: bool = False
    fewest: int = 0

    @property
    def offers_free(self) -> bool:
        return self.free != () and (self.asked_for or not self.properties)


class Reference(msgspec.Struct, frozen=True, gc=False):
    """The shape stored under this name in the definitions; how recursion is written."""

    name: str


Kind: TypeAlias = Anything | Choice | Text | Number | Array | Record | Reference
Shape: TypeAlias = tuple[Kind, ...]
Definitions: TypeAlias = Mapping[str, Shape]

NEVER: Shape = ()
ANY: Shape = (Anything(),)
TEXT: Shape = (Text(),)
INTEGER: Shape = (Number(integer=True),)
NUMBER: Shape = (Number(),)
BOOLEAN: Shape = (Choice(("true", "false")),)
NULL: Shape = (Choice(("null",)),)
ANY_ARRAY: Shape = (Array(items=ANY),)
ANY_RECORD: Shape = (Record(free=ANY),)


EVERY_TYPE = frozenset(("string", "number", "boolean", "null", "array", "object"))

# What templates that print values with Python's str() write for these.
PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}


class Unfinished(Exception):
    """A recursive definition was needed before it was read to its end."""


class TooManyKinds(Exception):
    """References lead to more kinds than were to be looked at."""


def kinds(shape: Shape, definitions: Definitions, most: int | None = None) -> Shape:
    """The shape with references at its top followed, each name once.

    Raises `Unfinished` where a name has no definition yet, and `TooManyKinds` after `most` kinds
    and references.
    """
    if not any(type(kind) is Reference for kind in shape):
        return shape
    found: list[Kind] = []
    pending = list(reversed(shape))
    seen: set[str] = set()
    left = most
    while pending:
        if left is not None:
            if left == 0:
                raise TooManyKinds
            left -= 1
        kind = pending.pop()
        if not isinstance(kind, Reference):
            found.append(kind)
        elif kind.name not in seen:
            seen.add(kind.name)
            if kind.name not in definitions:
                raise Unfinished
            pending.extend(reversed(definitions[kind.name]))
    return tuple(found)


def same(a: object, b: object) -> bool:
    """JSON equality: 1 and 1.0 are the same number, true and 1 are not the same value."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return a == b


def _is_scalar(value: object) -> bool:
    return not isinstance(value, (list, dict))


def within(size: int, shortest: int, longest: int | None) -> bool:
    return size >= shortest and (longest is None or size <= longest)


class Steps:
    """Work that may still be done: one budget for all the values of an answer."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int = 1) -> bool:
        """Whether there was room for this much."""
        self.left -= count
        return self.left >= 0


class Membership:
    """Whether decoded JSON values fit shapes; patterns are not looked at.

    The work is bounded: alternatives inside alternatives can cost 2**depth on a schema made
    for it, so when no `steps` are left everything is taken to fit.
    """

    def __init__(self, definitions: Definitions, steps: Steps | None = None) -> None:
        self._definitions = definitions
        # 10,000 comparisons take about 10 ms, and real arguments need a few dozen.
        self._steps = steps or Steps(10_000)

    def fits(self, value: object, shape: Shape) -> bool:
        flat = kinds(shape, self._definitions)
        if flat is not shape and not self._steps.take(len(flat) // 8):  # eight are gathered a step
            return True
        return any(self._fits_kind(value, kind) for kind in flat)

    def _fits_kind(self, value: object, kind: Kind) -> bool:
        if not self._steps.take():
            return True
        match kind:
            case Choice():
                return self._is_among(value, kind)
            case Text():
                return isinstance(value, str) and within(len(value), kind.shortest, kind.longest)
            case Number():
                return _fits_number(value, kind)
            case Array():
                return self._fits_array(value, kind)
            case Record():
                return self._fits_record(value, kind)
            case _:
                return True

    def _is_among(self, value: object, kind: Choice) -> bool:
        if _is_scalar(value):
            return (isinstance(value, bool), value) in kind.scalars
        for size, one in kind.containers:
            if not self._steps.take(1 + size // 16):  # the values in so much text take a step
                return True
            if same(value, one):
                return True
        return False

    def _fits_array(self, value: object, kind: Array) -> bool:
        if not isinstance(value, list) or not within(len(value), kind.shortest, kind.longest):
            return False
        rest = value[len(kind.prefix) :]
        pairs = zip(value, kind.prefix, strict=False)
        return all(self.fits(item, shape) for item, shape in pairs) and all(
            self.fits(item, kind.items) for item in rest
        )

    def _fits_record(self, value: object, kind: Record) -> bool:
        if not isinstance(value, dict) or not kind.required <= value.keys():
            return False
        if not self._steps.take(len(kind.properties) // 8):  # eight go into the table a step
            return True
        declared = dict(kind.properties)
        return len(value) >= kind.fewest and all(
            self.fits(item, declared.get(key, kind.free)) for key, item in value.items()
        )


def whole(number: Number) -> Number | None:
    """The number as an integer, its bounds rounded inwards; None if no integer is left."""
    low, high = number.low, number.high
    if low is not None:
        low = math.floor(low) + 1 if number.above_low else math.ceil(low)
    if high is not None:
        high = math.ceil(high) - 1 if number.below_high else math.floor(high)
    if low is not None and high is not None and low > high:
        return None
    return Number(integer=True, low=low, high=high)


def _fits_number(value: object, kind: Number) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if kind.integer and value != int(value):
        return False
    if kind.low is not None and (value < kind.low or (kind.above_low and value == kind.low)):
        return False
    return kind.high is None or (value < kind.high or (value == kind.high and not kind.below_high))


def choice(values: Iterable[object]) -> Choice:
    """A choice between decoded JSON values."""
    return Choice(tuple(map(json_text, values)))


def json_text(value: object) -> str:
    """A value as templates print it: `1e+100`, spaces behind commas and colons."""
    if isinstance(value, (str, int)) or value is None:
        return msgspec.json.encode(value).decode()  # the same text, in a tenth of the time
    return json.dumps(value, ensure_ascii=False)


def literal_types(shape: Shape, definitions: Definitions) -> frozenset[str]:
    """The JSON types that a value of this shape may have."""
    found: set[str] = set()
    for kind in kinds(shape, definitions):
        match kind:
            case Anything():
                return EVERY_TYPE
            case Choice():
                found.update(json_type(value) for value in kind.values())
            case Text():
                found.add("string")
            case Number():
                found.add("number")
            case Array():
                found.add("array")
            case _:
                found.add("object")
    return frozenset(found)


def json_type(value: object) -> str:
    """The JSON type of a decoded value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, (int, float)):
        return "number"
    return "array" if isinstance(value, list) else "object"
