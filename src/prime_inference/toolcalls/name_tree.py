"""Names that are none of some given ones, as rules: a tree of the beginnings of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prime_inference.toolcalls.grammar import EMPTY, Grammar, alternatives, literal

# States of the tree. Beside as many declared characters as this nobody needs free names.
MOST_STATES = 4_000

_OF_A_STATE = 256  # characters: most are the classes of what may follow


class TooManyNames(Exception):
    """The tree would have more than `MOST_STATES` states."""


def other_names(
    grammar: Grammar,
    stem: str,
    names: Iterable[str],
    rest: Callable[[Sequence[str]], str],
    *,
    unwritten: str = "",
) -> str:
    """The rule for a name that is not among `names`.

    `rest` gives the expression for a character that is none of some, and all that may follow
    it: the name has then parted from every given one. `unwritten` are characters that cannot
    stand for themselves, so that no name is followed beyond one. Raises `TooManyNames`.
    """
    following: dict[str, dict[str, None]] = {"": {}}
    taken = set()
    for name in names:
        end = next((i for i, char in enumerate(name) if char in unwritten), len(name))
        for length in range(end):
            following[name[:length]][name[length]] = None
            following.setdefault(name[: length + 1], {})
        if end == len(name):
            taken.add(name)
        if len(following) > MOST_STATES:
            raise TooManyNames
    if not grammar.has_room:
        raise TooManyNames
    grammar.spend(_OF_A_STATE * len(following))
    first = grammar.fresh(f"{stem}-k", EMPTY)
    rules = {start: f"{first}-{i}" if start else first for i, start in enumerate(following)}
    for start, chars in following.items():
        bodies = [rest(list(chars))]
        bodies += [f"{literal(char)} {rules[start + char]}" for char in chars]
        if start not in taken:
            bodies.append(EMPTY)
        grammar.define(rules[start], alternatives(bodies))
    return first
