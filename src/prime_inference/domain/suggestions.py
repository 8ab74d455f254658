"""Names near one that does not exist, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], limit: int = 3) -> list[str]:
    """Up to `limit` known names similar to `name`, best first."""
    by_folded = {candidate.lower(): candidate for candidate in known}
    # difflib is quadratic: a name longer than any real one is cut before it is compared
    matches = difflib.get_close_matches(name[:128].lower(), by_folded, n=limit, cutoff=0.5)
    return [by_folded[match] for match in matches]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean a, b?`, or nothing."""
    names = nearest(name, known)
    return f" Did you mean {', '.join(names)}?" if names else ""
