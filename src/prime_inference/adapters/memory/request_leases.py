"""Request leases of one scope, as the store keeps them.

`adapters/redis/lua/request_*.lua` is the same in Lua.
"""

from __future__ import annotations

from prime_inference.ports.coordination import RequestAsk, RequestGrant


class RequestScope:
    """The leases under all limits of one scope. `now` is the store's clock."""

    def __init__(self, now: float) -> None:
        self._ends: dict[str, dict[str, float]] = {}  # limit -> member -> end
        self._latest = now

    def acquire(self, ask: RequestAsk, now: float) -> RequestGrant:
        """A place under each limit, or none at all."""
        self._advance(now)
        for limit in ask.limits:
            ends = self._ends.get(limit.name, {})
            if ask.member not in ends and len(ends) >= limit.most:
                first = min(ends.values(), default=now)
                return RequestGrant(False, limit.name, retry_after_s=first - now)
        for limit in ask.limits:
            self._ends.setdefault(limit.name, {})[ask.member] = now + ask.ttl_s
        return RequestGrant(True)

    def renew(self, ask: RequestAsk, now: float) -> bool:
        """Prolong a lease that is live under all its limits."""
        self._advance(now)
        if not self._live(ask):
            return False
        for limit in ask.limits:
            self._ends[limit.name][ask.member] = now + ask.ttl_s
        return True

    def release(self, ask: RequestAsk, now: float) -> bool:
        """End a lease; False if any part of it had ended before."""
        self._advance(now)
        live = self._live(ask)
        for limit in ask.limits:
            self._ends.get(limit.name, {}).pop(ask.member, None)
        return live

    def empty(self, now: float) -> bool:
        """Whether there is nothing left to remember."""
        self._advance(now)
        return not any(self._ends.values())

    def _live(self, ask: RequestAsk) -> bool:
        return all(ask.member in self._ends.get(limit.name, {}) for limit in ask.limits)

    def _advance(self, now: float) -> None:
        step_back = self._latest - now
        self._latest = now
        for name, ends in self._ends.items():
            if step_back > 0:
                ends = {member: end - step_back for member, end in ends.items()}
            self._ends[name] = {member: end for member, end in ends.items() if end > now}
