"""The holds of one replica: taken before a request starts, settled when it ends.

While the store is away, or learns what it has forgotten, a replica goes by its part of each
limit: of rates and concurrency limit / replicas, of budgets `GRACE` of the whole / replicas, and
no more than it knows to be left. So all replicas together never spend more than the grace over
a budget.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from prime_inference.billing.limit_table import LimitTable
from prime_inference.billing.refusals import refusal
from prime_inference.domain.limits import MOST_AMOUNT, Limit, LimitKind, window_start
from prime_inference.domain.pools import SERVERLESS
from prime_inference.ports.ledger import LedgerUnavailable
from prime_inference.ports.limits import (
    Demand,
    HoldAsk,
    HoldGrant,
    LimitState,
    LimitStore,
    LimitsUnavailable,
    Settlement,
)

log = logging.getLogger(__name__)

TTL_S = 60.0  # what a replica that dies may keep from a budget, and for how long
RENEW_S = TTL_S / 3  # two renewals may be lost
SETTLE_S = 0.01  # settlements gathered for one call; until then a little too much is held
RETRY_S = 1.0  # settlements that the store has not taken; looks whether it was emptied
LEARN_S = 5.0  # by then every replica has looked, after a pause of its circuit, and put back
AT_ONCE = 50  # budgets in one call: a script stops all others
HOLDS_AT_ONCE = 500  # in one call: ten thousand would never fit into its time
GRACE = 100  # a hundredth of a budget: what may be overspent while nobody can be asked

LedgerSpent = Callable[[Limit, int], Awaitable[int]]
"""Nanodollars that the ledger has for a limit in the window that began on that day."""


@dataclass(slots=True, eq=False)
class Hold:
    """What one request holds. Give it to `Holds.settle`."""

    ask: HoldAsk
    shared: bool  # the store knows it


@dataclass(slots=True)
class _Work:
    live: set[Hold] = field(default_factory=set)
    unsettled: list[Settlement] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Holds:
    """`replicas` says how many share the limits; `run` renews and retries."""

    def __init__(
        self,
        store: LimitStore,
        ledger_spent: LedgerSpent,
        *,
        replicas: Callable[[], int] = lambda: 1,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ledger_spent = ledger_spent
        self._replicas = replicas
        self._wall_clock = wall_clock
        self._clock = clock
        self._seen: dict[tuple[str, int], int] = {}  # (limit, window) -> known to be spent
        self._asked: set[tuple[str, int]] = set()  # of these the ledger was read
        self._kinds: dict[str, LimitKind] = {}  # of the limits among them
        self._name = secrets.token_hex(8)  # of this replica
        self._life: int | None = None  # of the store
        self._learns_until = -math.inf
        self._owes = False  # the store has not taken back yet what it has forgotten
        self._alone = LimitTable(TTL_S)
        self._work = _Work()
        self.degraded = False
        self.output_left: dict[str, int] = {}  # tokens of reservations, by pool, as told last

    async def take(
        self,
        member: str,
        limits: Sequence[Limit],
        *,
        tokens: int,
        cost: int,
        at: float | None = None,
    ) -> Hold | None:
        """Hold a part of every limit, of budgets in the window of `at`, or of now.

        Raises BudgetExceeded, RateLimited; ReservationExhausted for the output of a reservation.
        """
        if not limits:
            return None
        now = self._wall_clock() if at is None else at
        demands = [await self._demand(limit, tokens, cost, now) for limit in limits]
        ask = HoldAsk(member, tuple(demands), TTL_S)
        try:
            shared, grant = await self._reserve(ask)
            if shared and (self._has_forgotten(grant.life) or self._clock() < self._learns_until):
                if grant.granted:
                    self._work.unsettled.append((ask, (0,) * len(demands)))
                await self._put_back()
                ask = HoldAsk(f"{member}/alone", ask.demands, TTL_S)
                shared, grant = False, self._reserve_alone(ask)
            elif shared and any(state.restored for state in grant.states):
                demands = [await self._demand(limit, tokens, cost, now) for limit in limits]
                again = HoldAsk(f"{member}/again", tuple(demands), TTL_S)
                if self._work.live or again.demands != ask.demands:  # decided by too little
                    await self._renew()
                    if grant.granted:
                        self._work.unsettled.append((ask, (0,) * len(demands)))
                        await self._settle()
                    ask = again
                    shared, grant = await self._reserve(ask)
            if not grant.granted and self._work.unsettled:  # what waits to be given back may do
                await self._settle()
                shared, grant = await self._reserve(ask)
        except asyncio.CancelledError:  # the store may have granted it
            self._settle_soon((ask, tuple(_if_granted(demand) for demand in ask.demands)))
            raise
        if grant.refused is not None:
            place = grant.refused
            raise refusal(limits[place], ask.demands[place], grant.states[place], now)
        hold = Hold(ask, shared)
        self._work.live.add(hold)
        return hold

    def settle(
        self, hold: Hold, *, tokens: int, cost: int, output: int = 0, pool: str = SERVERLESS
    ) -> None:
        """End a hold with what was used; the store is told in the background.

        `output` are the completion tokens, `pool` is whose slots gave them.
        """
        if hold not in self._work.live:
            return
        self._work.live.discard(hold)
        used = tuple(
            _amount(demand.kind, tokens, cost) if demand.limit != pool else output
            for demand in hold.ask.demands
        )
        if not hold.shared:
            self._alone.settle(hold.ask, used, self._clock())
        self._settle_soon((hold.ask, used))

    async def run(self) -> None:
        """Renew holds, and settle what could not be settled, until cancelled."""
        renewed = self._clock()
        while True:
            await asyncio.sleep(RETRY_S)
            await self.look()
            await self._settle()
            if self._clock() - renewed >= RENEW_S:
                renewed = self._clock()
                await self._renew()

    async def look(self) -> None:
        """Put back what the store has forgotten, if it was emptied."""
        try:
            if self._has_forgotten(await self._store.life()) or self._owes:
                await self._put_back()
        except LimitsUnavailable:
            return  # there is a next round

    async def drain(self) -> None:
        """Send the settlements that wait, and wait for those that are on their way."""
        await asyncio.gather(self._send_settlements(), *self._work.tasks)

    async def _demand(self, limit: Limit, tokens: int, cost: int, now: float) -> Demand:
        amount = _amount(limit.kind, tokens, cost)
        if not limit.kind.is_budget:
            return Demand(limit.id, limit.kind, limit.most, amount)
        window = window_start(limit.kind, now)
        place = limit.id, window
        if place not in self._asked:  # the store may be new, the ledger is not
            try:
                spent = await self._ledger_spent(limit, window)
            except LedgerUnavailable:  # the store knows, unless it is new: asked again next time
                seen = self._seen.get(place, 0)
                return Demand(limit.id, limit.kind, limit.most, amount, window, seen)
            self._asked.add(place)
            self._kinds[limit.id] = limit.kind
            self._saw(place, spent)
        return Demand(limit.id, limit.kind, limit.most, amount, window, self._seen[place])

    def _has_forgotten(self, life: int) -> bool:
        """Whether the store was emptied since it was asked last; it learns from now on."""
        before, self._life = self._life, life
        if before in (None, life):
            return False
        log.warning("the store of limits was emptied: they are decided alone for %.0f s", LEARN_S)
        self._learns_until = self._clock() + LEARN_S
        self._owes = True
        return True

    async def _put_back(self) -> None:
        """Tell a store that was emptied what was spent, as this replica knows it, and is held."""
        known = [
            Demand(limit, self._kinds[limit], 0, 0, window, seen)
            for (limit, window), seen in self._seen.items()
            if seen and limit in self._kinds
        ]
        asks = [
            HoldAsk(f"{self._name}/{first}", tuple(known[first : first + AT_ONCE]), RETRY_S)
            for first in range(0, len(known), AT_ONCE)
        ]
        for each in asks:  # a call for each
            if not await self._renew_all([each]):
                return
        self._owes = False
        await self._send_settlements()
        await self._renew()

    async def _reserve(self, ask: HoldAsk) -> tuple[bool, HoldGrant]:
        if self._clock() < self._learns_until:
            self.degraded = True
            return False, self._reserve_alone(ask)
        try:
            grant = await self._store.reserve(ask)
        except LimitsUnavailable as error:
            if not self.degraded:
                log.warning("limits are decided alone: %s", error)
            self.degraded = True
            return False, self._reserve_alone(ask)
        self.degraded = False
        self._saw_all(ask, grant.states)
        return True, grant

    def _saw_all(self, ask: HoldAsk, states: Sequence[LimitState]) -> None:
        for demand, state in zip(ask.demands, states, strict=True):
            if demand.kind is LimitKind.RESERVED_OUTPUT:
                self.output_left[demand.limit] = state.left
            elif demand.kind.is_budget:
                self._saw((demand.limit, demand.window), state.spent)
                if state.restored:
                    self._asked.discard((demand.limit, demand.window))

    def _saw(self, place: tuple[str, int], spent: int) -> None:
        """More than any budget counts as just that: the store counts in doubles."""
        self._seen[place] = max(self._seen.get(place, 0), min(spent, 2 * MOST_AMOUNT))

    def _reserve_alone(self, ask: HoldAsk) -> HoldGrant:
        replicas = max(1, self._replicas())
        own = [replace(demand, most=_own_part(demand, replicas)) for demand in ask.demands]
        return self._alone.reserve(replace(ask, demands=tuple(own)), self._clock())

    def _settle_soon(self, settlement: Settlement) -> None:
        self._work.unsettled.append(settlement)
        if self._work.timer is None:
            self._work.timer = asyncio.get_running_loop().call_later(SETTLE_S, self._send)

    def _send(self) -> None:
        self._work.timer = None
        task = asyncio.get_running_loop().create_task(self._settle())
        self._work.tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._work.tasks.discard)

    async def _settle(self) -> None:
        """Not while the store learns: what is spent alone would count as known, and pass again."""
        if self._clock() >= self._learns_until:
            await self._send_settlements()

    async def _send_settlements(self) -> None:
        """In parts, each in a call's time: an outage leaves more than fits into one.

        What was not sent stays, also if a request that waited for it is cancelled.
        """
        waiting, self._work.unsettled = self._work.unsettled, []
        sent = 0
        try:
            while sent < len(waiting):
                part = waiting[sent : sent + HOLDS_AT_ONCE]
                states = await self._store.settle(part)
                for (ask, _), after in zip(part, states, strict=True):
                    self._saw_all(ask, after)
                sent += len(part)
        except LimitsUnavailable:
            pass  # there is a next round
        finally:
            self._work.unsettled = waiting[sent:] + self._work.unsettled

    async def _renew_all(self, asks: Sequence[HoldAsk]) -> bool:
        """In parts as well; whether the store has answered to all."""
        try:
            for first in range(0, len(asks), HOLDS_AT_ONCE):
                await self._store.renew(asks[first : first + HOLDS_AT_ONCE])
        except LimitsUnavailable:
            return False  # there is a next round
        return True

    async def _renew(self) -> None:
        if not await self._renew_all([hold.ask for hold in self._work.live if hold.shared]):
            return
        for hold in self._work.live:
            if not hold.shared:
                self._alone.renew(hold.ask, self._clock())


def _amount(kind: LimitKind, tokens: int, cost: int) -> int:
    if kind.is_budget:
        return cost
    if kind is LimitKind.RESERVED_OUTPUT:  # drawn when it is known, and only by whom it served
        return 0
    return tokens if kind is LimitKind.TOKENS_PER_MINUTE else 1


def _if_granted(demand: Demand) -> int:
    """What settles a hold that nobody knows to be granted, and changes nothing if it is not.

    A rate would gain what is given back of an ask that it had refused.
    """
    return min(demand.amount, demand.most) if demand.kind.is_rate else 0


def _own_part(demand: Demand, replicas: int) -> int:
    """What one of the replicas may let through alone."""
    if demand.kind.is_budget:
        left = max(0, demand.most - demand.seen)
        return demand.seen + min(left, demand.most // GRACE) // replicas
    return max(1, demand.most // replicas) if demand.most else 0
