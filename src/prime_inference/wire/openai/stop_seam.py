"""Stop strings that begin in what one engine wrote and end in what the next one writes.

Engines hold text back that could be the beginning of a stop string, but not all do, and one
that takes an answer up looks only at its own text.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopSeam:
    """Watches the text after a seam until no stop string can straddle it any more.

    `feed` gives the text that may be sent; `stopped` tells that a stop string was met, and
    `watching` whether there is more to watch for.
    """

    def __init__(self, stops: Sequence[str], sent: str) -> None:
        self._stops = stops
        self._reach = max(len(stop) for stop in stops) - 1  # characters of a stop but its last
        self._tail = self._last(sent)
        self._held = ""
        self._seam = len(self._tail)  # where in tail + held the newest seam is
        self.stopped = False

    @property
    def watching(self) -> bool:
        """Whether a stop string may still straddle the seam."""
        return not self.stopped and len(self._tail) + len(self._held) < self._seam + self._reach

    def again(self) -> None:
        """Another engine goes on from here; what is held back has not been sent."""
        self._seam = len(self._tail) + len(self._held)

    def feed(self, text: str) -> str:
        """Text that may be sent now."""
        self._held += text
        seen = self._tail + self._held
        found = [at for stop in self._stops if (at := seen.find(stop)) >= 0]
        if found:
            self.stopped = True
            return seen[len(self._tail) : max(min(found), len(self._tail))]
        begun = self._begun(seen)
        sent = seen[len(self._tail) : max(begun, len(self._tail))]
        self._held = self._held[len(sent) :]
        before = self._tail + sent
        self._tail = self._last(before)
        self._seam -= len(before) - len(self._tail)
        return sent

    def rest(self) -> str:
        """The answer has ended: what was held back is text after all."""
        held, self._held = self._held, ""
        return held

    def _begun(self, seen: str) -> int:
        """Where the first stop string begins that only more text can complete; else the end."""
        for at in range(min(self._seam, len(seen))):
            if any(stop.startswith(seen[at:]) for stop in self._stops):
                return at
        return len(seen)

    def _last(self, text: str) -> str:
        return text[-self._reach :] if self._reach else ""
