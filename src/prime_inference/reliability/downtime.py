"""Who waits in vain on a deployment that was found down (docs/reliability.md, "Found down")."""

from __future__ import annotations

SILENT_S = 5.0
"""Without a token, on a deployment that is down: the next look, 5 s later, would have found it
well again, and the slowest models write two tokens a second."""


def in_vain(since: float, began: float, silence: float | None, now: float) -> bool:
    """Whether an attempt may be ended for one elsewhere, on a deployment that is down `since`.

    `silence` is how long it has brought nothing; None if it never has. An answer whose tokens
    come is left alone: slow is not dead. One that `began` after the verdict was sent there for
    want of anything better: the verdict is old news to it.
    """
    if silence is not None:
        return min(silence, now - since) >= SILENT_S
    return began <= since or now - began >= SILENT_S
