"""Patterns as expressions for the two places where a string is written: JSON and tags."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from prime_inference.toolcalls.grammar import (
    EMPTY,
    MOST_REPEATS,
    Grammar,
    Range,
    character_class,
    group,
    literal,
    repeat,
)
from prime_inference.toolcalls.pattern import (
    Chain,
    Chars,
    Either,
    Node,
    Repeated,
    Unsupported,
    complement,
    parse,
)
from prime_inference.toolcalls.shapes import Text

Escapes: TypeAlias = tuple[tuple[int, str], ...]  # code point, how it is written


class Spelling(msgspec.Struct, frozen=True):
    """Which characters may be written as they are, and how some of the others are written."""

    reserved: tuple[Range, ...]
    escapes: Escapes = ()


JSON_STRING = Spelling(
    reserved=((0, 31), (34, 34), (92, 92)),
    escapes=(
        (8, "\\b"),
        (9, "\\t"),
        (10, "\\n"),
        (12, "\\f"),
        (13, "\\r"),
        (34, '\\"'),
        (92, "\\\\"),
    ),
)

# Where markers are kept out of strings, the character that begins them is written as an escape.
JSON_STRING_WITHOUT_MARKERS = Spelling(
    reserved=(*JSON_STRING.reserved, (60, 60)),
    escapes=(*JSON_STRING.escapes, (60, "\\u003c")),
)

# In tags every character stands for itself. A `<` could begin the closing tag, so none is
# written where a pattern decides what follows.
TAG_TEXT = Spelling(reserved=((60, 60),))


def expression(grammar: Grammar, stem: str, kind: Text, spelling: Spelling) -> tuple[str, bool]:
    """The first pattern of the kind, and whether its length bounds are kept as well.

    Raises `Unsupported`.
    """
    if not grammar.has_room:
        raise Unsupported("too much for one grammar")
    tree = parse(kind.patterns[0])
    bounded = kind.shortest == 0 and kind.longest is None
    if not bounded:
        narrowed = _bounded(tree, kind)
        if narrowed is not None:
            tree, bounded = narrowed, True
    body = _Writer(grammar, stem, spelling).write(tree)
    grammar.spend(_OF_A_PATTERN + len(body))
    return body, bounded


_OF_A_PATTERN = 512  # reading it takes as long as writing so many characters


def _bounded(tree: Node, kind: Text) -> Node | None:
    """The tree with the length bounds, if it is a single repeated character."""
    while isinstance(tree, Chain) and len(tree.parts) == 1:
        tree = tree.parts[0]
    if not isinstance(tree, Repeated) or not isinstance(tree.part, Chars):
        return None
    shortest = max(tree.shortest, kind.shortest)
    bounds = [bound for bound in (tree.longest, kind.longest) if bound is not None]
    longest = min(bounds, default=None)
    if max(shortest, longest or 0) > MOST_REPEATS:
        return None
    if longest is not None and longest < shortest:
        raise Unsupported("contradicts the length")
    return Repeated(tree.part, shortest, longest)


class _Writer:
    def __init__(self, grammar: Grammar, stem: str, spelling: Spelling) -> None:
        self._grammar = grammar
        self._stem = stem
        self._spelling = spelling

    def write(self, node: Node) -> str:
        """An expression fit to stand in a sequence."""
        match node:
            case Chars():
                return self._chars(node)
            case Chain():
                return " ".join(self.write(part) for part in node.parts) or EMPTY
            case Either():
                return group([self.write(branch) for branch in node.branches])
            case Repeated():
                body = self.write(node.part)
                one = body if _is_class(body) else self._grammar.fresh(self._stem, body)
                return repeat(one, node.shortest, node.longest)
            case _:
                raise Unsupported("an anchor inside")

    def _chars(self, node: Chars) -> str:
        wanted = complement(complement(node.ranges))
        plain = complement((*complement(wanted), *self._spelling.reserved))
        bodies = [character_class(plain)] if plain else []
        for code, spelled in self._spelling.escapes:
            if any(low <= code <= high for low, high in wanted):
                bodies.append(literal(spelled))
        if not bodies:
            raise Unsupported("a character that cannot be written here")
        return group(bodies)


def _is_class(body: str) -> bool:
    return body.startswith("[") and body.endswith("]") and body.count("[") == 1
