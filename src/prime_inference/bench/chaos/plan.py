"""What breaks when, for how long: drawn from a seed, and never everything at once."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

Deed = Literal["kill", "freeze", "drain", "burst"]

MEAN_PAUSE_S = 1.5  # between two faults; each lasts about as long, so they overlap
LONGEST_S = {"engine": 8.0, "gateway": 4.0, "store": 15.0}
"""Engines: beyond the clocks of an attempt. Gateways: below the lease, as a pause of the
machine is. The store: beyond the lease, so that replicas come down to their safe capacity."""
SHORTEST_S = 0.5
BURST_EVERY = 8  # one fault in so many is a burst of requests instead


@dataclass(frozen=True, slots=True)
class Fault:
    """At `at` seconds, for `lasting` seconds."""

    at: float
    kind: str  # engine, gateway, store, clients
    number: int
    deed: Deed
    lasting: float

    def __str__(self) -> str:
        what = f"{self.kind} {self.number}" if self.kind in ("engine", "gateway") else self.kind
        return f"{self.at:6.1f} s  {self.deed} {what} for {self.lasting:.1f} s"


@dataclass
class Plan:
    """Faults in order of time. `datacenters[i]` is where engine i stands."""

    seconds: float
    gateways: int
    datacenters: Sequence[str]
    random: Random
    _broken: list[tuple[float, str, int]] = field(default_factory=list)  # ends, kind, number

    def faults(self) -> Iterator[Fault]:
        """Ends early enough for everything to be up again at the end."""
        now = self.random.expovariate(1 / MEAN_PAUSE_S)
        while now < self.seconds - SHORTEST_S:
            while self._broken and self._broken[0][0] <= now:
                heapq.heappop(self._broken)
            yield from self._next(now)
            now += self.random.expovariate(1 / MEAN_PAUSE_S)

    def _next(self, now: float) -> Iterator[Fault]:
        random = self.random
        if random.randrange(BURST_EVERY) == 0:
            yield Fault(now, "clients", 0, "burst", 0.0)
            return
        kind = random.choice(("engine", "engine", "datacenter", "gateway", "store"))
        if kind == "datacenter":  # a whole one, in one way
            datacenter = random.choice(sorted(set(self.datacenters)))
            numbers = [n for n, name in enumerate(self.datacenters) if name == datacenter]
            kind = "engine"
        else:
            numbers = [random.randrange(self._count(kind))]
        deeds: tuple[Deed, ...] = ("kill", "freeze", "drain") if kind == "gateway" else (
            "kill", "freeze")  # fmt: skip
        deed = random.choice(deeds)
        lasting = random.uniform(SHORTEST_S, LONGEST_S[kind])
        if self._may_break(kind, numbers):
            for number in numbers:
                heapq.heappush(self._broken, (now + lasting + RETURN_S, kind, number))
                yield Fault(now, kind, number, deed, lasting)

    def _count(self, kind: str) -> int:
        return {"engine": len(self.datacenters), "gateway": self.gateways, "store": 1}[kind]

    def _may_break(self, kind: str, numbers: Sequence[int]) -> bool:
        """Only what is whole, and never the last of its kind but the store."""
        broken = {number for _, which, number in self._broken if which == kind}
        if broken & set(numbers):
            return False
        return kind == "store" or len(broken | set(numbers)) < self._count(kind)


RETURN_S = 2.0  # a process needs so long to be up again on a busy machine
