"""The `pattern` keyword as a grammar expression.

Patterns are regular expressions of ECMA 262, searched for anywhere in the string. A subset is
translated: literals, classes, groups, alternation, counted repetition, anchors at the ends.
Look-around, back-references, word boundaries and Unicode properties raise `Unsupported`; the
caller then relaxes the keyword. What is translated matches no string that the pattern does
not match.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from prime_inference.toolcalls.grammar import MOST_REPEATS, Range

# Longer patterns than this are generated lists of words; an enum says the same better.
LONGEST = 1_000
DEEPEST = 40  # nested groups

# Characters of the pattern with all counted repetitions written out: each costs a state of the
# automaton that the engine builds.
MOST_STATES = 4_000


class Unsupported(Exception):
    """The pattern needs more than a grammar can say, or than is translated here."""


class Chars(msgspec.Struct, frozen=True):
    """One character out of sorted, disjoint ranges."""

    ranges: tuple[Range, ...]


class Chain(msgspec.Struct, frozen=True):
    parts: tuple[Node, ...]


class Either(msgspec.Struct, frozen=True):
    branches: tuple[Node, ...]


class Repeated(msgspec.Struct, frozen=True):
    part: Node
    shortest: int
    longest: int | None


class Anchor(msgspec.Struct, frozen=True):
    end: bool


Node: TypeAlias = Chars | Chain | Either | Repeated | Anchor

# All code points that UTF-8 can carry: the surrogates are no characters.
EVERY = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_DIGITS = ((48, 57),)
_WORD = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE = (
    (9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
)  # fmt: skip
_SHORT = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROL = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}


def complement(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The characters that are in none of the ranges."""
    found = []
    for low, high in EVERY:
        start = low
        for first, last in merged(ranges):
            if last < start or first > high:
                continue
            if first > start:
                found.append((start, first - 1))
            start = last + 1
        if start <= high:
            found.append((start, high))
    return tuple(found)


def merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    """The same characters in sorted, disjoint ranges."""
    found: list[Range] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return tuple(found)


def parse(pattern: str) -> Node:
    """The pattern as a tree that matches whole strings: unanchored ends are open.

    Raises `Unsupported`.
    """
    if len(pattern) > LONGEST:
        raise Unsupported("too long")
    return _Reader(pattern).whole()


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        tree = self._either()
        if self._at < len(self._pattern):
            raise Unsupported("unbalanced parenthesis")
        if _states(tree) > MOST_STATES:
            raise Unsupported("too many repetitions")
        branches = tree.branches if isinstance(tree, Either) else (tree,)
        opened = tuple(_opened(branch) for branch in branches)
        return opened[0] if len(opened) == 1 else Either(opened)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _take(self) -> str:
        char = self._peek()
        if not char:
            raise Unsupported("ends too early")
        self._at += 1
        return char

    def _either(self) -> Node:
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else Either(tuple(branches))

    def _sequence(self) -> Node:
        parts = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._quantified(self._atom()))
        return parts[0] if len(parts) == 1 else Chain(tuple(parts))

    def _atom(self) -> Node:
        char = self._take()
        match char:
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case ".":
                return Chars(complement(_LINE_ENDS))
            case "^" | "$":
                return Anchor(end=char == "$")
            case "\\":
                return Chars(self._escape())
            case "*" | "+" | "?":
                raise Unsupported("nothing to repeat")
        return Chars(((ord(char), ord(char)),))

    def _group(self) -> Node:
        if self._peek() == "?":
            rest = self._pattern[self._at : self._at + 3]
            if rest.startswith("?:"):
                self._at += 2
            elif rest.startswith("?<") and rest[2:] not in ("=", "!"):
                self._at = self._pattern.find(">", self._at) + 1 or len(self._pattern)
            else:
                raise Unsupported("look-around")
        self._depth += 1
        if self._depth > DEEPEST:
            raise Unsupported("nested too deeply")
        inside = self._either()
        if self._take() != ")":
            raise Unsupported("unbalanced parenthesis")
        self._depth -= 1
        return inside

    def _quantified(self, part: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._peek() == "?":  # lazy: the same strings
            self._at += 1
        if isinstance(part, Anchor) or self._bounds() is not None:
            raise Unsupported("quantifier of a quantifier or an anchor")
        shortest, longest = bounds
        if max(shortest, longest or 0) > MOST_REPEATS:
            raise Unsupported("too many repetitions")
        if longest is not None and longest < shortest:
            raise Unsupported("bounds out of order")
        return Repeated(part, shortest, longest)

    def _bounds(self) -> tuple[int, int | None] | None:
        char = self._peek()
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if char in simple:
            self._at += 1
            return simple[char]
        if char != "{":
            return None
        inside, brace, _ = self._pattern[self._at + 1 :].partition("}")
        first, comma, last = inside.partition(",")
        if not brace or not first.isdecimal() or (last and not last.isdecimal()):
            return None  # a brace that counts nothing is a character
        if len(inside) > 10:
            raise Unsupported("too many repetitions")
        self._at += len(inside) + 2
        return int(first), int(last) if last else (None if comma else int(first))

    def _class(self) -> tuple[Range, ...]:
        negated = self._peek() == "^"
        self._at += negated
        found: list[Range] = []
        while self._peek() != "]":
            start = self._class_part()
            dash = self._pattern[self._at : self._at + 2]
            if dash[:1] != "-" or dash[1:] in ("]", ""):
                found.extend(start)
                continue
            self._at += 1
            end = self._class_part()
            if not _single(start) or not _single(end) or start[0][0] > end[0][0]:
                raise Unsupported("a range between classes")
            found.append((start[0][0], end[0][0]))
        self._at += 1
        return complement(found) if negated else merged(found)

    def _class_part(self) -> tuple[Range, ...]:
        char = self._take()
        if char == "\\":
            return ((8, 8),) if self._peek() == "b" and self._take() else self._escape()
        return ((ord(char), ord(char)),)

    def _escape(self) -> tuple[Range, ...]:
        char = self._take()
        if char.lower() in _SHORT:
            ranges = _SHORT[char.lower()]
            return complement(ranges) if char.isupper() else ranges
        if char in _CONTROL and not (char == "0" and self._peek().isdecimal()):
            code = _CONTROL[char]
        elif char in "xu":
            code = self._hex(2 if char == "x" else 4)
        elif char.isalnum():
            raise Unsupported(f"escape \\{char}")
        else:
            code = ord(char)
        return ((code, code),)

    def _hex(self, digits: int) -> int:
        text = self._pattern[self._at : self._at + digits]
        self._at += digits
        try:
            code = int(text, 16)
        except ValueError:
            raise Unsupported("not a hexadecimal escape") from None
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF or len(text) < digits:
            raise Unsupported("not a character")
        return code


def _states(node: Node) -> int:
    match node:
        case Chain(parts=inner) | Either(branches=inner):
            return sum(map(_states, inner))
        case Repeated():
            return _states(node.part) * max(node.shortest, node.longest or 1)
        case _:
            return 1


def _single(ranges: Sequence[Range]) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _opened(branch: Node) -> Node:
    """The branch with its anchors taken off, and any text where there was none."""
    parts = list(branch.parts) if isinstance(branch, Chain) else [branch]
    anything = Repeated(Chars(EVERY), 0, None)
    starts = bool(parts) and parts[0] == Anchor(end=False)
    ends = bool(parts) and parts[-1] == Anchor(end=True)
    parts = parts[starts : len(parts) - ends]
    if _holds_anchor(parts):
        raise Unsupported("an anchor inside")
    return Chain((*([] if starts else [anything]), *parts, *([] if ends else [anything])))


def _holds_anchor(nodes: Sequence[Node]) -> bool:
    for node in nodes:
        match node:
            case Anchor():
                return True
            case Chain(parts=inner) | Either(branches=inner):
                if _holds_anchor(inner):
                    return True
            case Repeated():
                if _holds_anchor([node.part]):
                    return True
            case _:
                pass
    return False
