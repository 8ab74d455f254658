"""Shapes as rules for parameters in tags, one tag for each argument.

Strings stand as they are, without quotes or escapes; every other value is JSON. So a string
cannot hold the closing tag (inside JSON it is written with an escape), and where a parameter
may be a string or an array or object, a string that looks like the beginning of one is left
out: the reader could not tell them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, lru_cache

import msgspec

from prime_inference.toolcalls.exclusion import excluding, some
from prime_inference.toolcalls.grammar import Grammar, any_but, group, literal, repeat
from prime_inference.toolcalls.json_rules import JsonRules, Note, Unwritable, escaped
from prime_inference.toolcalls.members import Member, members
from prime_inference.toolcalls.pattern import Unsupported
from prime_inference.toolcalls.pattern_rules import TAG_TEXT, expression
from prime_inference.toolcalls.shapes import (
    ANY,
    ANY_ARRAY,
    ANY_RECORD,
    BOOLEAN,
    INTEGER,
    NUMBER,
    PYTHON_WORDS,
    TEXT,
    Anything,
    Array,
    Choice,
    Definitions,
    Kind,
    Record,
    Reference,
    Shape,
    Text,
    kinds,
)

# A raw string of bounded length is written without `<`, so that its end is never in doubt. That
# suits names and titles. Above this length a text may well hold a `<`, and is not likely to
# meet its bound: the bound is left to validation.
LONGEST_COUNTED = 256


_PYTHON = {json: word for word, json in PYTHON_WORDS.items()}
_PLAIN = {INTEGER: "integer", NUMBER: "number", ANY_ARRAY: "array", ANY_RECORD: "object"}

# Names of parameters are short; a reader that waits for the end of one must not wait for ever.
LONGEST_NAME = 256


class TagStyle(msgspec.Struct, frozen=True, dict=True):
    """How one parameter is written: `before` name `after` value `close`.

    `after_other` replaces `after` where the format marks values that are no strings.
    """

    before: str
    after: str
    close: str
    after_other: str | None = None
    ends_value: str = ""  # the part of `close` that no string may hold; all of it by default
    python_words: bool = False  # True, False and None are written beside true, false and null

    @cached_property
    def plain(self) -> dict[Shape, str]:
        """What follows a name, for the shapes of most parameters of most tools."""
        rules = _PLAIN | {BOOLEAN: group([literal(word) for word in self.words(("true", "false"))])}
        other = self.after_rules[-1]
        plain = {shape: f"{other} {rule} {self.close_rule}" for shape, rule in rules.items()}
        plain[TEXT] = f"{self.after_rules[0]} text {self.close_rule}"
        if self.after_other is None:
            plain[ANY] = plain[TEXT]
        return plain

    def words(self, texts: Iterable[str]) -> list[str]:
        """The spellings of a choice's values where nothing marks strings."""
        found = []
        for text in texts:
            if text[0] == '"':
                found.append(msgspec.json.decode(text, type=str))
            elif self.python_words and text in _PYTHON:
                found += (text, _PYTHON[text])
            else:
                found.append(text)
        return found

    @cached_property
    def after_rules(self) -> tuple[str, ...]:
        """The expressions for `after` and, if there is one, `after_other`."""
        return tuple(literal(one) for one in (self.after, self.after_other) if one is not None)

    @cached_property
    def close_rule(self) -> str:
        return literal(self.close)

    @cached_property
    def forbidden(self) -> str:
        return self.ends_value or self.close

    def opening(self, name: str, *, is_string: bool) -> str:
        after = self.after if is_string or self.after_other is None else self.after_other
        return f"{self.before}{name}{after}"

    def written(self, name: str, value: object, text: str) -> str:
        """A whole parameter; `text` is the value's JSON. Raises `Unwritable`."""
        raw = value if isinstance(value, str) else escaped(text, (self.forbidden,))
        if not self.can_name(name) or self.forbidden in raw:
            raise Unwritable(name)
        return self.opening(name, is_string=isinstance(value, str)) + raw + self.close

    def can_name(self, name: str) -> bool:
        """Whether a parameter of this name can be read back."""
        if not 0 < len(name) <= LONGEST_NAME:
            return False
        return name.isidentifier() or not (self.after[0] in name or "\n" in name)


@lru_cache(maxsize=64)
def _text_rules(forbidden: str) -> tuple[tuple[str, str], ...]:
    rules = excluding("text", (forbidden,))
    return (*rules, ("some-text", some("text", rules)))


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
        grammar.include(_text_rules(style.forbidden))

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
        texts = (self._parameter_text(name, one) for name, one in value.items())
        return " ".join(literal(text) for text in texts) or '""'

    def _parameter_text(self, name: str, value: object) -> str:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        if self._style.forbidden in text:
            raise Unwritable
        return (
            self._style.opening(name, is_string=isinstance(value, str)) + text + self._style.close
        )

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
        return inside or '""'

    def _parameter(self, name: str, shape: Shape, path: str) -> str:
        if not self._style.can_name(name):
            self._note(path, "properties", "the format cannot hold this name")
            raise Unwritable(path)
        return self._tagged(literal(self._style.before + name), shape, path)

    def _tagged(self, before: str, shape: Shape, path: str) -> str:
        """A parameter whose opening has been written up to its name."""
        style = self._style
        if style.after_other is None:
            return (
                f"{before} {literal(style.after)} {self._raw(shape, path)} {literal(style.close)}"
            )
        bodies = []
        flat = kinds(shape, self._definitions)
        strings, others = tuple(_string_part(flat)), tuple(_other_part(flat))
        for after, part, write in (
            (style.after_rules[0], strings, self._raw),
            (style.after_rules[1], others, self._json.value),
        ):
            try:  # a parameter is written with the marks of either or of both
                if part:
                    bodies.append(f"{after} {write(part, path)}")
            except Unwritable:
                continue
        if not bodies:
            raise Unwritable(path)
        return f"{before} {group(bodies)} {style.close_rule}"

    def _raw(self, shape: Shape, path: str) -> str:
        """A value where nothing marks strings. Raises `Unwritable`."""
        flat = kinds(shape, self._definitions)
        if any(isinstance(kind, Anything) for kind in flat):
            return "text"
        structured = any(isinstance(kind, Array | Record) for kind in flat)
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
        names = sorted(name for name, _ in kind.properties)
        rule = self._other_name(names)
        try:
            body = self._tagged(
                f"{literal(self._style.before)} {rule}", kind.free, path + "/additionalProperties"
            )
        except Unwritable:
            return None
        return self._grammar.fresh(self._stem, body)

    def _other_name(self, names: Iterable[str]) -> str:
        """A name that is none of these: letters, digits, `_`, `-` and `.`, as a tree."""
        taken = set(names)
        beginnings = sorted(
            {name[:n] for name in taken for n in range(len(name) + 1)} | {""}, key=len
        )
        stem = self._grammar.fresh(f"{self._stem}-k", '""')
        rules = {start: f"{stem}-{index}" for index, start in enumerate(beginnings)}
        for start in beginnings:
            nexts = {b[-1] for b in beginnings if len(b) == len(start) + 1 and b.startswith(start)}
            others = "".join(c for c in _NAME if c not in nexts)
            bodies = [f"[{others.replace('-', '')}{'-' if '-' in others else ''}] {stem}"]
            bodies += [f"{literal(char)} {rules[start + char]}" for char in sorted(nexts)]
            if start and start not in taken:
                bodies.append('""')
            self._grammar.define(rules[start], " | ".join(bodies))
        # 63 more characters: names are short, and a name without end is a loop.
        self._grammar.define(stem, "[A-Za-z0-9_.-]{0,63}")
        return rules[""]


_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"


def _string_part(flat: Iterable[Kind]) -> Iterable[Kind]:
    for kind in flat:
        if isinstance(kind, Text | Anything):
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
        elif not isinstance(kind, Text | Reference):
            yield kind
