"""Members in their declared order, some optional, with a separator between those written."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from prime_inference.toolcalls.grammar import EMPTY, Grammar, group


class Member(msgspec.Struct, frozen=True):
    """One property: the expression that writes it, and whether it must be written."""

    body: str
    required: bool


def members(
    grammar: Grammar,
    stem: str,
    declared: Sequence[Member],
    *,
    free: str | None = None,
    separator: str = "",
    at_least_one: bool = False,
) -> str | None:
    """The expression for all members; None if nothing can be written and nothing must be.

    `free` writes one further member and may follow any number of times.
    """
    lead = f"{separator} " if separator else ""
    tails = [f"{lead}{m.body}" if m.required else f"({lead}{m.body})?" for m in declared]
    if free is not None:
        tails.append(f"({lead}{free})*")
    first_required = next((i for i, m in enumerate(declared) if m.required), None)
    if first_required == 0 or (first_required is not None and not separator):
        # Without a separator the members do not depend on each other.
        return " ".join([declared[0].body, *tails[1:]] if first_required == 0 else tails)
    if not separator and not at_least_one:
        return " ".join(tails) or None
    return _by_first(grammar, stem, declared, tails, free, first_required, at_least_one)


def _by_first(
    grammar: Grammar,
    stem: str,
    declared: Sequence[Member],
    tails: Sequence[str],
    free: str | None,
    first_required: int | None,
    at_least_one: bool,
) -> str | None:
    """One alternative for each member that may be the first; what follows is shared as rules."""
    after = [""] * (len(tails) + 1)  # the expression for everything from a member on
    for index in range(len(tails) - 1, 0, -1):
        rest = f"{tails[index]} {after[index + 1]}".rstrip()
        after[index] = rest if index == len(tails) - 1 else grammar.fresh(stem, rest)
    last = len(declared) - 1 if first_required is None else first_required
    starts = [f"{declared[i].body} {after[i + 1]}".rstrip() for i in range(last + 1)]
    if first_required is None and free is not None:
        starts.append(f"{free} {tails[-1]}")
    if not starts:
        return None
    if first_required is None and not at_least_one:
        starts.append(EMPTY)
    return group(starts)
