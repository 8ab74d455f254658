"""A table of rules, in the syntax that xgrammar's EBNF and llama.cpp's GBNF share.

Both read `name ::= alternatives` with quoted literals, character classes, groups and
`{m,n}`; both treat recursion at the end of a rule as a loop, so that "any characters but" is
written as an automaton: one rule per state, ending in the rule of the next state. Rule names
are lower-case letters, digits and hyphens, which is what llama.cpp allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

Range: TypeAlias = tuple[int, int]  # code points, both included

# llama.cpp refuses a larger repetition than 2,000; xgrammar takes any, but a string of bounded
# length costs it 14 us a character at 1,000 (measured with 0.2.9) and more beyond.
MOST_REPEATS = 1_000

EMPTY = '""'

_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_CLASS_ESCAPES = _ESCAPES | {"]": "\\]", "[": "\\[", "^": "\\u005e", "-": "\\u002d"}


class Grammar:
    """Rules by name. A body is an expression; `alternatives` and `group` build them."""

    def __init__(self) -> None:
        self._rules: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._rules

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

    def include(self, rules: Iterable[tuple[str, str]]) -> None:
        self._rules.update(rules)

    def text(self, root: str) -> str:
        """The grammar, beginning at the expression `root`."""
        lines = [f"root ::= {root}"]
        lines += [f"{name} ::= {body}" for name, body in self._rules.items()]
        return "\n".join(lines) + "\n"


def literal(text: str) -> str:
    """The expression that matches exactly this text."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(_escaped(char, _ESCAPES) for char in text) + '"'


def _escaped(char: str, table: dict[str, str]) -> str:
    if char in table:
        return table[char]
    code = ord(char)
    if code < 0x20 or 0x7F <= code < 0xA0:
        return f"\\u{code:04x}"
    if char.isprintable() or char == " ":
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def character_class(ranges: Sequence[Range]) -> str:
    """The class of these code points."""
    return "[" + "".join(_range(low, high) for low, high in ranges) + "]"


def any_but(chars: str, *, control: bool = True) -> str:
    """The class of all characters but these; without the control characters if asked."""
    body = "".join(_escaped(char, _CLASS_ESCAPES) for char in sorted(chars))
    return "[^" + body + ("]" if control else "\\u0000-\\u001f]")


def _range(low: int, high: int) -> str:
    first = _escaped(chr(low), _CLASS_ESCAPES)
    return first if low == high else f"{first}-{_escaped(chr(high), _CLASS_ESCAPES)}"


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
