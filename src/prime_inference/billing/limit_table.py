"""What is used of limits, as a store keeps it: pure, each method takes the store's clock.

`adapters/redis/lua/limits.lua` is the same in Lua; the conformance suite compares them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from prime_inference.ports.limits import (
    KEEP_SETTLED_S,
    Demand,
    HoldAsk,
    HoldGrant,
    LimitState,
    keep_s,
)

MINUTE_S = 60.0


@dataclass(slots=True)
class _Counter:
    """One limit, of a budget one window. `at` is when it was asked last.

    `level` is what a rate's bucket holds; `holds` are member -> (amount, end).
    """

    level: float = 0.0
    at: float = 0.0
    spent: int = 0
    held: int = 0  # the sum of the holds
    restored: bool = False  # the last look found it forgotten, or behind
    first_end: float = math.inf  # no hold ends before
    holds: dict[str, tuple[int, float]] = field(default_factory=dict)

    def hold(self, member: str, amount: int, end: float) -> None:
        self.release(member)
        self.holds[member] = amount, end
        self.held += amount
        self.first_end = min(self.first_end, end)

    def release(self, member: str) -> None:
        self.held -= self.holds.pop(member, (0, 0.0))[0]

    def drop_ended(self, now: float) -> None:
        if self.first_end > now:
            return
        self.holds = {member: hold for member, hold in self.holds.items() if hold[1] > now}
        self.held = sum(amount for amount, _ in self.holds.values())
        self.first_end = min((end for _, end in self.holds.values()), default=math.inf)


class LimitTable:
    """All limits of one store."""

    def __init__(self, keep_settled_s: float = KEEP_SETTLED_S) -> None:
        self._keep_settled_s = keep_settled_s
        self._forget: deque[tuple[float, str]] = deque()  # when, and which settled member
        self._counters: dict[str, dict[int, _Counter]] = {}  # by limit and window
        self._held: dict[str, float] = {}  # member -> end
        self._settled: set[str] = set()

    def reserve(self, ask: HoldAsk, now: float) -> HoldGrant:
        """See `ports.limits.LimitStore.reserve`."""
        counters = [self._advanced(demand, now) for demand in ask.demands]
        known = ask.member in self._settled or self._held.get(ask.member, now) > now
        pairs = list(zip(counters, ask.demands, strict=True))
        if not known:
            for place, (counter, demand) in enumerate(pairs):
                if not _fits(counter, demand):
                    return HoldGrant(place, _states(pairs))
            for counter, demand in pairs:
                _take(counter, demand, ask.member, now + ask.ttl_s)
            self._held[ask.member] = now + ask.ttl_s
        return HoldGrant(None, _states(pairs, asked=False))

    def settle(self, ask: HoldAsk, used: Sequence[int], now: float) -> tuple[LimitState, ...]:
        """See `ports.limits.LimitStore.settle`."""
        pairs = [(self._advanced(demand, now), demand) for demand in ask.demands]
        if ask.member in self._settled:
            return _states(pairs, asked=False)
        for (counter, demand), amount in zip(pairs, used, strict=True):
            _settle(counter, demand, ask.member, amount)
        self._held.pop(ask.member, None)
        self._settled.add(ask.member)
        self._forget.append((now + self._keep_settled_s, ask.member))
        while self._forget and self._forget[0][0] <= now:
            self._settled.discard(self._forget.popleft()[1])
        return _states(pairs, asked=False)

    def renew(self, ask: HoldAsk, now: float) -> None:
        """See `ports.limits.LimitStore.renew`."""
        if ask.member in self._settled:
            return
        self._held[ask.member] = now + ask.ttl_s
        for demand in ask.demands:
            counter = self._advanced(demand, now)
            if not demand.kind.is_rate:
                counter.hold(ask.member, demand.amount, now + ask.ttl_s)

    def _advanced(self, demand: Demand, now: float) -> _Counter:
        """The counter of this window at this moment, knowing what the replica has seen."""
        windows = self._counters.setdefault(demand.limit, {})
        counter = windows.get(demand.window)
        if fresh := counter is None:
            _forget(windows, now - keep_s(demand.kind))
            counter = windows[demand.window] = _Counter(demand.most, now)
        since, counter.at = counter.at, now
        if demand.kind.is_rate:
            gained = demand.most * max(0.0, now - since) / MINUTE_S
            counter.level = min(float(demand.most), counter.level + gained)
            return counter
        counter.drop_ended(now)
        counter.restored = fresh or counter.spent < demand.seen
        counter.spent = max(counter.spent, demand.seen)
        return counter


def _forget(windows: dict[int, _Counter], before: float) -> None:
    """The windows that nobody has asked since."""
    for window in [window for window, counter in windows.items() if counter.at < before]:
        del windows[window]


def _asked(demand: Demand) -> int:
    """More than a full bucket is never there: it stands for all of it."""
    return min(demand.amount, demand.most) if demand.kind.is_rate else demand.amount


def _fits(counter: _Counter, demand: Demand) -> bool:
    if demand.kind.is_rate:
        return demand.most > 0 and counter.level >= _asked(demand)
    return counter.spent + counter.held + demand.amount <= demand.most


def _take(counter: _Counter, demand: Demand, member: str, end: float) -> None:
    if demand.kind.is_rate:
        counter.level -= _asked(demand)
    else:
        counter.hold(member, demand.amount, end)


def _settle(counter: _Counter, demand: Demand, member: str, used: int) -> None:
    if demand.kind.is_rate:
        counter.level = min(float(demand.most), counter.level + _asked(demand) - used)
        return
    counter.release(member)
    if demand.kind.is_budget:
        counter.spent += used


def _states(pairs: Sequence[tuple[_Counter, Demand]], asked: bool = True) -> tuple[LimitState, ...]:
    return tuple(_state(counter, demand, asked) for counter, demand in pairs)


def _state(counter: _Counter, demand: Demand, asked: bool) -> LimitState:
    if not demand.kind.is_rate:
        left = demand.most - counter.spent - counter.held
        return LimitState(max(0, left), 0.0, counter.spent, counter.restored)
    missing = _asked(demand) - counter.level if asked else 0.0
    wait = max(0.0, missing) * MINUTE_S / demand.most if demand.most else MINUTE_S
    return LimitState(max(0, int(counter.level)), wait, 0)
