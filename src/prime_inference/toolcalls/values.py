"""One raw value from a tag, as JSON text, typed by its shape.

A tag does not say whether `null` is a string or the null value; the schema does. Where it
admits both, the value that is not a string wins, because that is what templates write for it.
Strings are taken byte for byte; other literals are kept as the model wrote them, so that no
digit of a number is lost. Nothing is guessed: what fits no type is kept as a string, and
validation reports it.
"""

from __future__ import annotations

import msgspec

from prime_inference.toolcalls.reader import Sink
from prime_inference.toolcalls.shapes import (
    ANY,
    PYTHON_WORDS,
    Choice,
    Definitions,
    Membership,
    Shape,
    Steps,
    kinds,
    literal_types,
)

_WORDS = {"true": "boolean", "false": "boolean", "null": "null"}


class Reading(msgspec.Struct, frozen=True):
    """How the values of one parameter are read."""

    shape: Shape = ANY
    definitions: Definitions = {}
    strings: bool = True  # a string may stand here
    others: bool = True  # something else may stand here
    words: tuple[str, ...] | None = None  # if only these literals are no strings
    python_words: bool = False

    def may_be_literal(self, start: str) -> bool:
        """Whether a text that begins like this can be anything but a string."""
        if self.words is not None:
            return any(word.startswith(start) for word in self.words)
        return start[0] in ("{[-0123456789tfnTFN" if self.python_words else "{[-0123456789tfn")


STRING = Reading(others=False)
LITERAL = Reading(strings=False)
UNTYPED = Reading()


def reading(shape: Shape, definitions: Definitions, *, python_words: bool = False) -> Reading:
    """How to read the values of a parameter of this shape."""
    types = literal_types(shape, definitions)
    words = _literal_words(shape, definitions, python_words=python_words)
    return Reading(
        shape=shape,
        definitions=definitions,
        strings="string" in types,
        others=types != {"string"},
        words=words if types <= {"string", "boolean", "null"} else None,
        python_words=python_words,
    )


def _literal_words(
    shape: Shape, definitions: Definitions, *, python_words: bool
) -> tuple[str, ...]:
    found: set[str] = set()
    for kind in kinds(shape, definitions):
        if isinstance(kind, Choice):
            found.update(text for text in kind.texts if text in _WORDS)
    if python_words:
        found.update(word for word, text in PYTHON_WORDS.items() if text in found)
    return tuple(sorted(found))


def quoted(text: str) -> str:
    """The text as a JSON string."""
    return msgspec.json.encode(text).decode()


def to_json(text: str, how: Reading, steps: Steps | None = None) -> str:
    """The JSON text of a raw value; `steps` bounds what telling its type may cost."""
    if not how.others:
        return quoted(text)
    candidate = text if how.strings else text.strip()
    if how.python_words:
        candidate = PYTHON_WORDS.get(candidate, candidate)
    try:
        value = msgspec.json.decode(candidate)
    except (msgspec.DecodeError, RecursionError):  # no JSON, or too deep or large for any reader
        return quoted(text)
    if not how.strings:
        return candidate
    if isinstance(value, str):  # quotes belong to the string: a bare string has none of its own
        return quoted(text)
    # Whitespace around a literal means that the text was meant as such.
    if candidate != candidate.strip() or not _fits(value, how, steps):
        return quoted(text)
    return candidate


def _fits(value: object, how: Reading, steps: Steps | None) -> bool:
    return Membership(how.definitions, steps).fits(value, how.shape)


class ValueWriter:
    """Writes a raw value that comes in pieces as JSON, as early as its type is certain."""

    __slots__ = ("_held", "_how", "_open", "_sink", "_steps")

    def __init__(self, how: Reading, sink: Sink, steps: Steps | None = None) -> None:
        self._how = how
        self._steps = steps
        self._sink = sink
        self._held: list[str] = []
        self._open = not how.others  # certainly a string; its opening quote is written
        if self._open:
            sink('"')

    def write(self, text: str) -> None:
        if self._open:
            self._sink(quoted(text)[1:-1])
            return
        self._held.append(text)
        if self._how.strings and not self._how.may_be_literal(self._beginning()):
            self._sink(quoted("".join(self._held))[:-1])
            self._held.clear()
            self._open = True

    def _beginning(self) -> str:
        """Enough of what is held to tell: a word is short, other literals show at once."""
        if self._how.words is None or len(self._held) == 1:
            return self._held[0]
        self._held[:] = ["".join(self._held)]
        return self._held[0]

    def close(self) -> None:
        self._sink('"' if self._open else self._held_json())

    def break_off(self) -> None:
        """The value has no end: what came is passed on, and a string stays open."""
        if not self._open:
            text = self._held_json()
            self._sink(text[:-1] if text[0] == '"' else text)

    def _held_json(self) -> str:
        return to_json("".join(self._held), self._how, self._steps)
