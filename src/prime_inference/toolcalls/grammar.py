"""A table of rules, in the syntax that xgrammar's EBNF and llama.cpp's GBNF share.

Both read `name ::= alternatives` with quoted literals, character classes, groups and
`{m,n}`; both treat recursion at the end of a rule as a loop, so that "any characters but" is
written as an automaton: one rule per state, ending in the rule of the next state. Rule names
are lower-case letters, digits and hyphens, which is what llama.cpp allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]  # code points, both included

# llama.cpp refuses a larger repetition than 2,000; xgrammar takes any, but a string of bounded
# length costs it 14 us a character at 1,000 (measured with 0.2.9) and more beyond.
MOST_REPEATS = 1_000

# Characters for what a few words of a schema can ask much of: bounds of numbers, patterns, names
# that are left out. All of it takes about 40 ms; the tools of an agent need some thousand.
ROOM = 256 * 1024

EMPTY = '""'

# Control characters and what a literal or a class would read as its own syntax.
_CONTROL = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_IN_LITERAL = _CONTROL | {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 92: "\\\\"}
_IN_CLASS = _IN_LITERAL | {91: "\\[", 93: "\\]", 94: "\\u005e", 45: "\\u002d"}

_CHARACTERS = ((0, 0xD7FF), (0xE000, 0x10FFFF))  # without the surrogates


class Grammar:
    """Rules by name. A body is an expression; `alternatives` and `group` build them."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}
        self._room = ROOM

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def __getitem__(self, name: str) -> str:
        return self._rules[name]

    def define(self, name: str, body: str) -> str:
        """Sets the rule and returns its name, for use in other bodies."""
        self._rules[name] = body
        return name

    def reserve(self, name: str) -> None:
        """Claims a name whose body follows; a recursive rule is referred to before it is done."""
        self._rules.setdefault(name, EMPTY)

    def fresh(self, stem: str, body: str) -> str:
        """Adds the rule under a name of its own that begins with `stem`."""
        return self.define(f"{stem}-{len(self._rules)}", body)

    def include(self, rules: Sequence[tuple[str, str]]) -> None:
        """Adds a set of rules, unless it is there already: names of sets do not overlap."""
        if rules[0][0] not in self._rules:
            self._rules.update(rules)

    @property
    def has_room(self) -> bool:
        """Whether there may be more of what is costly to write."""
        return self._room > 0

    def spend(self, size: int) -> None:
        """So many characters were written, or so much work done, of what is costly."""
        self._room -= size

    def text(self, root: str) -> str:
        """The grammar, beginning at the expression `root`."""
        lines = [f"root ::= {root}"]
        lines += [f"{name} ::= {body}" for name, body in self._rules.items()]
        return "\n".join(lines) + "\n"


# The same names and words come again and again, in one set of tools and from set to set.
@lru_cache(maxsize=1024)
def literal(text: str) -> str:
    """The expression that matches exactly this text."""
    # Three replacements do for nearly all texts, in a tenth of the time that translate takes.
    short = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{short if short.isprintable() else text.translate(_IN_LITERAL)}"'


def character_class(ranges: Sequence[Range]) -> str:
    """The class of these code points."""
    pieces = [piece for low, high in ranges for piece in _within_utf8(low, high)]
    return "[" + "".join(_range(low, high) for low, high in pieces) + "]"


def _within_utf8(low: int, high: int) -> Iterator[Range]:
    """The range in pieces whose bytes in UTF-8 are independent of each other.

    xgrammar before 0.2.9 takes other ranges for bytes that are no UTF-8, or for none at all.
    Russ Cox, "Regular Expression Matching in the Wild" (2010), has the method.
    """
    for last in (0x7F, 0x7FF, 0xFFFF):  # of one, two and three bytes
        if low <= last < high:
            yield from _within_utf8(low, last)
            low = last + 1
    if high > 0x7F:
        for bits in (6, 12, 18):
            rest = (1 << bits) - 1
            if low | rest == high | rest:
                break  # all bytes but those of the rest are the same
            if low & rest:
                yield from _within_utf8(low, low | rest)
                low = (low | rest) + 1
            if high & rest != rest and low < high & ~rest:
                yield from _within_utf8(low, (high & ~rest) - 1)
                low = high & ~rest
    yield low, high


@lru_cache(maxsize=512)
def any_but(chars: str, *, control: bool = True) -> str:
    """The class of all characters but these; without the control characters if asked.

    Written as what it holds, not as what it leaves out: in a class that begins with `^`,
    xgrammar before 0.2.9 and llama.cpp let bytes pass that are no UTF-8.
    """
    left_out = sorted({*map(ord, chars), *(() if control else range(0x20))})
    ranges: list[Range] = []
    for low, high in _CHARACTERS:
        start = low
        for code in left_out:
            if low <= code <= high:
                ranges.append((start, code - 1))
                start = code + 1
        ranges.append((start, high))
    return character_class([(low, high) for low, high in ranges if low <= high])


def _range(low: int, high: int) -> str:
    first = _in_class(low)
    return first if low == high else f"{first}-{_in_class(high)}"


def _in_class(code: int) -> str:
    """One character of a class; beyond ASCII as a number, as some are invisible."""
    if code < 0x80:
        return chr(code).translate(_IN_CLASS)
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def alternatives(bodies: Iterable[str]) -> str:
    return " | ".join(bodies)


def group(bodies: Sequence[str]) -> str:
    """One expression that stands for any of the bodies inside a sequence."""
    return bodies[0] if len(bodies) == 1 else f"({' | '.join(bodies)})"


def repeat(one: str, shortest: int, longest: int | None) -> str:
    """`one`, which must be a single element, between so many times.

    Bounds beyond `MOST_REPEATS` must have been given up before.
    """
    if longest is None:
        if shortest <= 1:
            return one + "*+"[shortest]
        return f"{one}{{{shortest},}}"
    if longest == 1:
        return one if shortest else one + "?"
    return f"{one}{{{shortest},{longest}}}" if shortest != longest else f"{one}{{{shortest}}}"
