"""The attempts of one request: each on another deployment as long as there is one.

What `gateway.tries` asks of the guard, without rounds, pauses and reasons of failures.
"""

from __future__ import annotations

from prime_inference.reliability.guard import Guard

MOST_ATTEMPTS = 4  # as the gateway's


class Tries:
    """What one request has tried. Made anew for each request, and only for it."""

    __slots__ = ("_guard", "_model", "_moved", "count", "tried")

    def __init__(self, guard: Guard, model: str) -> None:
        self._guard = guard
        self._model = model
        self._moved = False
        self.count = 0
        self.tried: set[str] = set()
        guard.began(model)

    def candidates(self) -> list[str]:
        """Best first. Never one that was tried while another is untried."""
        offered = self._guard.candidates(self._model)
        if not self.tried:
            return offered
        untried = [name for name in offered if name not in self.tried]
        return untried or offered

    def started(self, deployment: str) -> None:
        """An attempt begins."""
        self.count += 1
        self.tried.add(deployment)

    def may_go_on(self, left: str) -> bool:
        """Whether one more attempt may follow the one on `left` that failed."""
        if self.count >= MOST_ATTEMPTS:
            return False
        moving = not self._moved and self._guard.is_ejected(left)
        allowed = self._guard.may_retry(self._model, left, moved=self._moved)
        self._moved = self._moved or moving
        return allowed
