"""Shapes as rules for JSON text.

Declared properties come in the caller's order. Whitespace is what models write: nothing, one
space, or a line break with indentation. Strings hold no lone surrogates and none of the
format's markers as plain text (`<` may be written `\\u003c`), so that what a grammar admits
every JSON reader takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from prime_inference.toolcalls.exclusion import excluding
from prime_inference.toolcalls.grammar import (
    MOST_REPEATS,
    Grammar,
    any_but,
    group,
    literal,
    repeat,
)
from prime_inference.toolcalls.members import Member, members
from prime_inference.toolcalls.name_tree import TooManyNames, other_names
from prime_inference.toolcalls.numerals import INTEGER, NUMBER, bounded
from prime_inference.toolcalls.pattern import Unsupported
from prime_inference.toolcalls.pattern_rules import (
    JSON_STRING,
    JSON_STRING_WITHOUT_MARKERS,
    expression,
)
from prime_inference.toolcalls.shapes import (
    TEXT,
    Anything,
    Array,
    Choice,
    Definitions,
    Kind,
    Number,
    Record,
    Reference,
    Shape,
    Text,
    json_text,
)

Note = Callable[[str, str, str], None]  # path, keyword, why it is not enforced

_COMMA = 'ws "," ws'
_HEX = "[0-9A-Fa-f]"
_ESCAPED = '"\\' + "".join(map(chr, range(0x20)))  # what JSON writes as an escape


class Unwritable(Exception):
    """No text can be written for a shape: it admits nothing, or nothing this format can hold."""


@lru_cache(maxsize=64)
def shared_rules(markers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """The rules every JSON grammar needs, with these markers kept out of its strings."""
    heads = "".join({marker[0] for marker in markers})
    pair = f'[Dd] [89ABab] {_HEX} {_HEX} "\\\\u" [Dd] [C-Fc-f] {_HEX} {_HEX}'
    unit = f"[0-9A-CEFa-cef] {_HEX}{{3}} | [Dd] [0-7] {_HEX} {_HEX} | {pair}"
    return (
        # Indentation beyond 20 is past any depth a schema here may have.
        ("ws", '(" " | "\\n" [ \\t]{0,20})?'),
        ("escape", f'"\\\\" (["\\\\/bfnrt] | "u" ({unit}))'),
        ("char", any_but('"\\' + heads, control=False) + " | escape"),
        *excluding("chars", markers, inside_json=True),
        ("string", '"\\"" chars "\\""'),
        ("integer", INTEGER),
        ("number", NUMBER),
        ("any", 'object | array | string | number | "true" | "false" | "null"'),
        ("object", f'"{{" ws ("}}" | pair ({_COMMA} pair)* ws "}}")'),
        ("pair", 'string ws ":" ws any'),
        ("array", f'"[" ws ("]" | any ({_COMMA} any)* ws "]")'),
    )


def escaped(text: str, markers: tuple[str, ...]) -> str:
    """JSON text with the markers inside its strings written with an escape."""
    if "<" in text:  # as every marker begins
        for marker in markers:
            text = text.replace(marker, f"\\u{ord(marker[0]):04x}{marker[1:]}")
    return text


class JsonRules:
    """Writes the rules of one schema into a grammar; `stem` begins the names of its rules."""

    def __init__(
        self,
        grammar: Grammar,
        definitions: Definitions,
        stem: str,
        note: Note,
        markers: tuple[str, ...] = (),
    ) -> None:
        self._grammar = grammar
        self._definitions = definitions
        self._stem = stem
        self._note = note
        self._markers = markers
        self._defined: dict[str, str] = {}
        grammar.include(shared_rules(markers))

    def value(self, shape: Shape, path: str) -> str:
        """An expression for any value of the shape, fit to stand in a sequence.

        Raises `Unwritable`.
        """
        if len(shape) == 1:
            return self._kind(shape[0], path)
        bodies: dict[str, None] = {}
        for kind in shape:
            try:  # one branch of an anyOf may be impossible while another is not
                bodies[self._kind(kind, path)] = None
            except Unwritable:
                continue
        if not bodies:
            raise Unwritable(path)
        return group(list(bodies))

    def _kind(self, kind: Kind, path: str) -> str:
        match kind:
            case Text():
                return "string" if kind == TEXT[0] else self._text(kind, path)
            case Choice():
                return group([self._fixed(text) for text in kind.texts])
            case Number():
                return self._number(kind, path)
            case Array():
                return self._array(kind, path)
            case Record():
                return self._record(kind, path)
            case Reference():
                return self._reference(kind, path)
            case Anything():
                return "any"

    def _fixed(self, text: str) -> str:
        """One value, with whitespace where JSON has it; `text` is its JSON."""
        if text[0] not in "[{":
            return literal(escaped(text, self._markers))
        value = msgspec.json.decode(text)
        if isinstance(value, dict):
            items = [f"{self._key(key)} ws {self._fixed(json_text(v))}" for key, v in value.items()]
        else:
            items = [self._fixed(json_text(one)) for one in value]
        inside = f" {_COMMA} ".join(items)
        return (
            f'"{text[0]}" ws {inside} ws "{text[-1]}"' if items else f'"{text[0]}" ws "{text[-1]}"'
        )

    def _reference(self, kind: Reference, path: str) -> str:
        if kind.name not in self._defined:
            name = f"{self._stem}-d{len(self._defined)}"
            self._defined[kind.name] = name
            self._grammar.reserve(name)
            self._grammar.define(name, self.value(self._definitions[kind.name], path))
        return self._defined[kind.name]

    def _text(self, kind: Text, path: str) -> str:
        if kind.patterns:
            for pattern in kind.patterns[1:]:
                self._note(path, "pattern", f"only one of several is enforced: not {pattern}")
            try:
                spelling = JSON_STRING_WITHOUT_MARKERS if self._markers else JSON_STRING
                body, bounded_too = expression(self._grammar, self._stem, kind, spelling)
            except Unsupported as unsupported:
                self._note(path, "pattern", str(unsupported))
            else:
                if not bounded_too:
                    self._note(path, "minLength", "not enforced beside a pattern")
                return f'"\\"" {body} "\\""'
        shortest, longest = self._lengths(kind.shortest, kind.longest, path, "Length")
        if longest is not None:
            return f'"\\"" {repeat("char", shortest, longest)} "\\""'
        if shortest:
            return f'"\\"" {repeat("char", shortest, shortest)} chars "\\""'
        return "string"

    def _lengths(
        self, shortest: int, longest: int | None, path: str, what: str
    ) -> tuple[int, int | None]:
        if shortest > MOST_REPEATS:
            self._note(path, f"min{what}", "too large to count in a grammar")
            shortest = MOST_REPEATS
        if longest is not None and longest > MOST_REPEATS:
            self._note(path, f"max{what}", "too large to count in a grammar")
            longest = None
        return shortest, longest

    def _number(self, kind: Number, path: str) -> str:
        if kind.low is None and kind.high is None:
            return "integer" if kind.integer else "number"
        if not self._grammar.has_room:
            self._note(path, "minimum", "too much for one grammar")
            return "integer" if kind.integer else "number"
        body = bounded(kind)
        if body is None:
            raise Unwritable(path)
        self._grammar.spend(len(body))
        return self._grammar.fresh(self._stem, body)

    def _record(self, kind: Record, path: str) -> str:
        declared = []
        at = path + "/properties/"
        for name, shape in kind.properties:
            required = name in kind.required
            try:  # an optional property that cannot be written is left out
                body = self.value(shape, at + name)
            except Unwritable:
                if required:
                    raise
                continue
            declared.append(Member(f"{self._key(name)} ws {body}", required))
        free = self._free(kind, path) if kind.offers_free else None
        inside = members(
            self._grammar,
            self._stem,
            declared,
            free=free,
            separator=_COMMA,
            at_least_one=kind.fewest > 0,
        )
        if inside is None:
            if kind.fewest:
                raise Unwritable(path)
            return '"{" ws "}"'
        return f'"{{" ws {inside} ws "}}"'

    def _key(self, name: str) -> str:
        return literal(escaped(json_text(name), self._markers) + ":")

    def _free(self, kind: Record, path: str) -> str | None:
        """A member with a name that is not declared."""
        try:  # a schema may forbid free values, or declare too much beside them
            value = self.value(kind.free, path + "/additionalProperties")
            name = self._free_name(kind, path)
        except Unwritable:
            return None
        except TooManyNames:
            self._note(path, "additionalProperties", "not offered beside so many properties")
            return None
        return self._grammar.fresh(self._stem, f'{name} ws ":" ws {value}')

    def _free_name(self, kind: Record, path: str) -> str:
        declared = [name for name, _ in kind.properties]
        if declared and kind.free_names:
            self._note(path, "propertyNames", "free names are not offered beside declared ones")
            raise Unwritable(path)
        if kind.free_names:
            return self._text(Text(patterns=kind.free_names), path + "/propertyNames")
        if not declared:
            return "string"
        tree = other_names(
            self._grammar, self._stem, declared, self._other_character, unwritten=_ESCAPED
        )
        return f'"\\"" {tree} "\\""'

    def _other_character(self, taken: Sequence[str]) -> str:
        """A character of a free name that is none of these, and the rest of the name.

        No escape, as that can spell any character, and no beginning of a marker.
        """
        reserved = {*'"\\', *(marker[0] for marker in self._markers), *taken}
        return f"{any_but(''.join(reserved), control=False)} chars"

    def _array(self, kind: Array, path: str) -> str:
        shortest, longest = self._lengths(kind.shortest, kind.longest, path, "Items")
        prefix = kind.prefix if longest is None else kind.prefix[:longest]
        bodies = [self.value(shape, f"{path}/prefixItems/{i}") for i, shape in enumerate(prefix)]
        room = None if longest is None else longest - len(bodies)
        if room != 0:
            try:  # items that cannot be written close the array
                item = self.value(kind.items, path + "/items")
                if "{" in item:  # llama.cpp bounds the product of repetitions within one rule
                    item = self._grammar.fresh("item", item)
            except Unwritable:
                room = 0
        if room == 0 and shortest > len(bodies):
            raise Unwritable(path)
        inside = (
            ""
            if room == 0
            else self._items(item, max(shortest - len(bodies), 0), room, bool(bodies))
        )
        for index in range(len(bodies) - 1, -1, -1):
            lead = f"{_COMMA} " if index else ""
            inside = f"{lead}{bodies[index]} {inside}".rstrip()
            if index >= shortest and index:
                inside = f"({inside})?"
        if not inside:
            return '"[" ws "]"'
        return f'"[" ws {inside} ws "]"' if shortest else f'"[" ws ("]" | {inside} ws "]")'

    @staticmethod
    def _items(item: str, shortest: int, longest: int | None, after_others: bool) -> str:
        """Items up to a number, with a comma before each but the first of the array."""
        more = f"({_COMMA} {item})"
        if after_others:
            return repeat(more, shortest, longest)
        most = None if longest is None else longest - 1
        if most == 0:
            return item
        return f"{item} {repeat(more, max(shortest - 1, 0), most)}"
