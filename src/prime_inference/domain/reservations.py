"""Reserved capacity: slots of a model that a team has for itself, from when to when, at what price.

docs/reservations.md has the words and the rules.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.models import Deployment
from prime_inference.domain.pools import RESERVED
from prime_inference.domain.prices import BASIS_POINTS

HOUR_S = 3600.0
MINUTE = 60  # seconds: the depth of the bucket that a reservation's output fills
MOST_TOKENS_PER_SECOND = 1_000_000_000  # a million slots at a thousand each


class Period(enum.StrEnum):
    """What a reservation is paid by."""

    HOUR = "hour"
    MONTH = "month"  # to the same day and time of the next month, or that month's last day


class State(enum.StrEnum):
    SCHEDULED = "scheduled"
    ACTIVE = "active"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Reservation:
    """Times in seconds since the epoch; `price` in nanodollars for each period that has begun.

    `token_discount` is taken off the token price of requests that its slots serve, in basis
    points: 10,000 makes them free. `spill`: requests that find no slot of it may use the
    serverless pool, at its price. `tokens_per_second` of output may be drawn from its slots,
    averaged over a minute; None: as many as they write.
    """

    id: str
    tenant: str
    model: str
    slots: int
    starts_at: float
    price: int
    period: Period
    created_at: float
    datacenters: frozenset[str] = frozenset()  # empty: any
    ends_at: float | None = None  # None: until somebody ends it; before the start: never active
    spill: bool = True
    token_discount: int = BASIS_POINTS
    tokens_per_second: int | None = None

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError("a reservation has at least one slot")
        if self.price < 0:
            raise ValueError("a price is not negative")
        if not 0 <= self.token_discount <= BASIS_POINTS:
            raise ValueError("a discount is between 0 and 10000 basis points")
        if not 1 <= (self.tokens_per_second or 1) <= MOST_TOKENS_PER_SECOND:
            raise ValueError(f"tokens per second are 1 to {MOST_TOKENS_PER_SECOND}")

    @property
    def pool(self) -> str:
        """The pool of requests that its slots serve, as events and bills name it."""
        return f"{RESERVED}{self.id}"

    @property
    def output_limit(self) -> Limit | None:
        """The bucket of the output that its slots may give; None: there is no bound."""
        if self.tokens_per_second is None:
            return None
        return _output_limit(self.pool, self.tokens_per_second, self.tenant, self.model)

    def state(self, now: float) -> State:
        if self.ends_at is not None and now >= self.ends_at:
            return State.ENDED
        return State.ACTIVE if now >= self.starts_at else State.SCHEDULED

    def overlaps(self, other: Reservation) -> bool:
        """Whether there is a moment at which both are active."""
        mine, others = self.ends_at, other.ends_at
        return (mine is None or other.starts_at < mine) and (
            others is None or self.starts_at < others
        )

    def may_use(self, deployment: Deployment) -> bool:
        """Whether its slots may be that deployment's."""
        return (
            deployment.model == self.model
            and not deployment.draining
            and (not self.datacenters or deployment.datacenter in self.datacenters)
        )


def period_start(reservation: Reservation, number: int) -> float:
    """When a reservation's period begins; the first has the number 0."""
    if reservation.period is Period.HOUR:
        return reservation.starts_at + number * HOUR_S
    first = datetime.fromtimestamp(reservation.starts_at, UTC)
    months = first.year * 12 + first.month - 1 + number
    year, month = months // 12, months % 12 + 1
    return first.replace(
        year=year, month=month, day=min(first.day, _days(year, month))
    ).timestamp()  # fmt: skip


def periods_due(reservation: Reservation, now: float) -> int:
    """Periods that have begun by now, and before the reservation's end."""
    end = now if reservation.ends_at is None else min(now, reservation.ends_at - 1e-6)
    if end < reservation.starts_at:
        return 0
    if reservation.period is Period.HOUR:
        return int((end - reservation.starts_at) // HOUR_S) + 1
    first = datetime.fromtimestamp(reservation.starts_at, UTC)
    last = datetime.fromtimestamp(end, UTC)
    number = (last.year - first.year) * 12 + last.month - first.month
    return number + 1 if period_start(reservation, number) <= end else number


Allotment = Mapping[str, Mapping[str, int]]
"""Slots of each reservation on each deployment: deployment id, reservation id, slots."""


def allot(
    reservations: Iterable[Reservation], deployments: Sequence[Deployment]
) -> dict[str, dict[str, int]]:
    """Divide each reservation over the deployments it may use, in proportion to their free slots.

    The oldest reservation comes first. What does not fit is left out: see `missing`. Every
    replica computes the same from the same reservations and fleet.
    """
    free = {each.id: each.slots for each in deployments}
    allotted: dict[str, dict[str, int]] = defaultdict(dict)
    for reservation in sorted(reservations, key=lambda each: (each.created_at, each.id)):
        usable = sorted(each.id for each in deployments if reservation.may_use(each))
        parts = _in_proportion(reservation.slots, [free[name] for name in usable])
        for name, part in zip(usable, parts, strict=True):
            if part:
                free[name] -= part
                allotted[name][reservation.id] = part
    return dict(allotted)


def missing(reservation: Reservation, allotment: Allotment) -> int:
    """Slots of a reservation that no deployment has for it."""
    given = sum(parts.get(reservation.id, 0) for parts in allotment.values())
    return reservation.slots - given


Speed = Callable[[Deployment], float | None]
"""Output tokens per second of one slot of a deployment; None: nobody knows."""


def carried(
    reservation: Reservation,
    allotment: Allotment,
    deployments: Iterable[Deployment],
    speed: Speed,
) -> float | None:
    """Output tokens per second of its slots, all in use; None if nobody knows of some of them."""
    total = 0.0
    for deployment in deployments:
        slots = allotment.get(deployment.id, {}).get(reservation.id)
        if slots:
            of_one = speed(deployment)
            if of_one is None:
                return None
            total += slots * of_one
    return total


@lru_cache(maxsize=1024)  # of every request on reserved slots
def _output_limit(pool: str, tokens_per_second: int, tenant: str, model: str) -> Limit:
    most = tokens_per_second * MINUTE
    return Limit(pool, LimitKind.RESERVED_OUTPUT, most, tenant=tenant, model=model)


def _in_proportion(wanted: int, room: Sequence[int]) -> list[int]:
    """Whole parts of at most `wanted` in all, none above its room; largest remainders first."""
    total = sum(room)
    wanted = min(wanted, total)
    if not wanted:
        return [0] * len(room)
    parts = [wanted * each // total for each in room]
    by_remainder = sorted(range(len(room)), key=lambda i: (-(wanted * room[i] % total), i))
    for i in by_remainder[: wanted - sum(parts)]:
        parts[i] += 1
    return parts


def _days(year: int, month: int) -> int:
    after = datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)
    return (after - datetime(year, month, 1, tzinfo=UTC)).days
