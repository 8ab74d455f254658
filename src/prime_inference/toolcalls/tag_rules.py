"""Shapes as rules for parameters in tags, one tag for each argument.

Strings stand as they are, without quotes or escapes; every other value is JSON. So a string
cannot hold the closing tag (inside JSON it is written with an escape), and where a parameter
may be a string or an array or object, a string that looks like the beginning of one is left
out: the reader could not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prime_inference.toolcalls.grammar import EMPTY, Grammar, any_but, group, literal, repeat
from prime_inference.toolcalls.json_rules import JsonRules, Note, Unwritable
from prime_inference.toolcalls.members import Member, members
from prime_inference.toolcalls.name_tree import TooManyNames, other_names
from prime_inference.toolcalls.pattern import Unsupported
from prime_inference.toolcalls.pattern_rules import TAG_TEXT, expression
from prime_inference.toolcalls.shapes import (
    ANY,
    Anything,
    Array,
    Choice,
    Definitions,
    Kind,
    Record,
    Reference,
    Shape,
    Text,
    choice,
    kinds,
)
from prime_inference.toolcalls.tag_style import TagStyle

# A raw string of bounded length is written without `<`, so that its end is never in doubt. That
# suits names and titles. Above this length a text may well hold a `<`, and is not likely to
# meet its bound: the bound is left to validation.
LONGEST_COUNTED = 256


class TagRules:
    """Writes the parameters of one tool into a grammar."""

    def __init__(
        self,
        grammar: Grammar,
        definitions: Definitions,
        stem: str,
        note: Note,
        style: TagStyle,
    ) -> None:
        self._grammar = grammar
        self._definitions = definitions
        self._stem = stem
        self._note = note
        self._style = style
        self._json = JsonRules(grammar, definitions, stem, note, (style.forbidden,))
        grammar.include(style.rules)

    def parameters(self, shape: Shape, path: str) -> str:
        """An expression for the parameters of a call. Raises `Unwritable`."""
        bodies = []
        for kind in kinds(shape, self._definitions):
            try:  # one branch of an anyOf may be impossible while another is not
                bodies.append(self._alternative(kind, path))
            except Unwritable:
                continue
        if not bodies:
            raise Unwritable(path)
        return group(bodies)

    def _alternative(self, kind: Kind, path: str) -> str:
        match kind:
            case Record():
                return self._record(kind, path)
            case Choice():
                return group([self._fixed(value) for value in kind.values()])
            case _:
                return self._record(Record(free=ANY), path)

    def _fixed(self, value: object) -> str:
        if not isinstance(value, dict):
            raise Unwritable
        bodies = [self._parameter(name, (choice([one]),), "") for name, one in value.items()]
        return " ".join(bodies) or EMPTY

    def _record(self, kind: Record, path: str) -> str:
        declared = []
        for name, shape in kind.properties:
            required = name in kind.required
            try:  # an optional property that cannot be written is left out
                body = self._parameter(name, shape, f"{path}/properties/{name}")
            except Unwritable:
                if required:
                    raise
                continue
            declared.append(Member(body, required))
        free = self._free(kind, path) if kind.offers_free else None
        inside = members(
            self._grammar, self._stem, declared, free=free, at_least_one=kind.fewest > 0
        )
        if inside is None and kind.fewest:
            raise Unwritable(path)
        return inside or EMPTY

    def _parameter(self, name: str, shape: Shape, path: str) -> str:
        if not self._style.can_name(name):
            self._note(path, "properties", "the format cannot hold this name")
            raise Unwritable(path)
        return f"open-tag {literal(name)} {self._value(shape, path)}"

    def _value(self, shape: Shape, path: str) -> str:
        """A parameter from behind its name. Raises `Unwritable`."""
        plain = self._style.plain.get(shape)
        if plain is not None:
            return plain
        if self._style.after_other is None:
            return f"is-string {self._raw(shape, path)} close-tag"
        bodies = []
        flat = kinds(shape, self._definitions)
        strings, others = tuple(_string_part(flat)), tuple(_other_part(flat))
        for after, part, write in (
            ("is-string", strings, self._raw),
            ("is-other", others, self._json.value),
        ):
            try:  # a parameter is written with the marks of either or of both
                if part:
                    bodies.append(f"{after} {write(part, path)}")
            except Unwritable:
                continue
        if not bodies:
            raise Unwritable(path)
        return f"{group(bodies)} close-tag"

    def _raw(self, shape: Shape, path: str) -> str:
        """A value where nothing marks strings. Raises `Unwritable`."""
        flat = kinds(shape, self._definitions)
        found = set(map(type, flat))
        if Anything in found:
            return "text"
        structured = not found.isdisjoint(_STRUCTURED)
        if len(flat) == 1:
            return self._raw_kind(flat[0], path, structured=structured)
        bodies: dict[str, None] = {}
        for kind in flat:
            try:  # one branch of an anyOf may be impossible while another is not
                bodies[self._raw_kind(kind, path, structured=structured)] = None
            except Unwritable:
                continue
        if not bodies:
            raise Unwritable(path)
        return group(list(bodies))

    def _raw_kind(self, kind: Kind, path: str, *, structured: bool) -> str:
        if isinstance(kind, Choice):
            plain = [text for text in kind.texts if text[0] not in "[{"]
            ends = self._style.forbidden
            kept = [literal(word) for word in self._style.words(plain) if ends not in word]
            if len(plain) < len(kind.texts):
                rest = tuple(text for text in kind.texts if text[0] in "[{")
                kept.append(self._json.value((Choice(rest),), path))
            if not kept:
                raise Unwritable(path)
            return group(kept)
        if isinstance(kind, Text):
            return self._raw_text(kind, path, structured=structured)
        return self._json.value((kind,), path)

    def _raw_text(self, kind: Text, path: str, *, structured: bool) -> str:
        if kind.patterns:
            try:
                body, bounded = expression(self._grammar, self._stem, kind, TAG_TEXT)
            except Unsupported as unsupported:
                self._note(path, "pattern", str(unsupported))
            else:
                if not bounded or len(kind.patterns) > 1 or structured:
                    self._note(path, "pattern", "only one of several bounds is enforced")
                return body
        shortest, longest = kind.shortest, kind.longest
        if max(shortest, longest or 0) > LONGEST_COUNTED:
            self._note(path, "maxLength", "not counted in a long text without quotes")
            shortest, longest = min(shortest, LONGEST_COUNTED), None
        if structured:
            first = any_but("<[{ \t\r\n")
            rest = repeat(
                any_but("<"), max(shortest - 1, 0), None if longest is None else longest - 1
            )
            if longest == 0:
                return '""'
            tail = f"{first} {rest}" if longest is not None or shortest > 1 else f"{first} text"
            return tail if shortest else f"({tail})?"
        if longest is not None:
            return repeat(any_but("<"), shortest, longest) if longest else '""'
        if shortest > 1:
            return f"{repeat(any_but('<'), shortest - 1, shortest - 1)} some-text"
        return "some-text" if shortest else "text"

    def _free(self, kind: Record, path: str) -> str | None:
        """A parameter with a name that is not declared."""
        if kind.free_names:
            self._note(path, "propertyNames", "free names are only offered without a pattern")
            return None
        names = [name for name, _ in kind.properties if self._style.can_name(name)]
        try:  # a schema may forbid free values, or declare too much beside them
            value = self._value(kind.free, path + "/additionalProperties")
            name = other_names(self._grammar, self._stem, names, _other_name)
        except Unwritable:
            return None
        except TooManyNames:
            self._note(path, "additionalProperties", "not offered beside so many properties")
            return None
        # A name is not empty, which the tree's root would allow.
        self._grammar.define(name, self._grammar[name].removesuffix(f" | {EMPTY}"))
        return self._grammar.fresh(self._stem, f"open-tag {name} {value}")


_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_."


def _other_name(taken: Sequence[str]) -> str:
    """A character of a made-up name that is none of these, and the rest of the name."""
    others = "".join(char for char in _NAME if char not in taken)
    dash = "" if "-" in taken else "-"
    # 63 more characters: names are short, and a name without end is a loop.
    return f"[{others}{dash}] [A-Za-z0-9_.-]{{0,63}}"


# Looked up, since `isinstance` of a union takes longer than the rest of a plain parameter.
_STRUCTURED = frozenset({Array, Record})
_MAYBE_STRING = frozenset({Text, Anything})
_NO_OTHER = frozenset({Text, Reference})


def _string_part(flat: Iterable[Kind]) -> Iterable[Kind]:
    for kind in flat:
        if type(kind) in _MAYBE_STRING:
            yield kind
        elif isinstance(kind, Choice):
            strings = tuple(text for text in kind.texts if text.startswith('"'))
            if strings:
                yield Choice(strings)


def _other_part(flat: Iterable[Kind]) -> Iterable[Kind]:
    for kind in flat:
        if isinstance(kind, Choice):
            others = tuple(text for text in kind.texts if not text.startswith('"'))
            if others:
                yield Choice(others)
        elif type(kind) not in _NO_OTHER:
            yield kind
