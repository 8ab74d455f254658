"""Names near one that does not exist, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

PART_CHARACTERS = 3  # a shorter part is in half of all names


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Up to `limit` known names like `name`, best first.

    Those that hold its last part (`smollm2`, of `other/smollm2` too) come before those that
    are only spelt alike: people remember a family's name, not its author or size.
    """
    by_folded = {candidate.lower(): candidate for candidate in known}
    # difflib is quadratic: a name longer than any real one is cut before it is compared
    folded = name[:128].lower()
    part = folded.rpartition("/")[2]
    holding = [name for name in by_folded if len(part) >= PART_CHARACTERS and part in name]
    holding.sort(key=lambda name: (folded not in name, len(name)))
    alike = difflib.get_close_matches(folded, by_folded, n=limit, cutoff=0.5)
    return [by_folded[match] for match in dict.fromkeys([*holding, *alike])][:limit]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean a, b?`, or nothing."""
    names = nearest(name, known)
    return f" Did you mean {', '.join(names)}?" if names else ""
