"""Where what keys, tenants and models use is counted, for all replicas together.

A hold takes a part of every limit that applies to a request, in one decision, or of none.
It is settled with what was really used, or ends by itself. Every call is idempotent by the
request's id (`member`): one that failed may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prime_inference.domain.limits import DAY_S, LimitKind


class LimitsUnavailable(Exception):
    """The store did not answer in time, or not in a way that makes sense."""


KEEP_SETTLED_S = 600.0  # a settlement that is repeated later than this counts twice
_KEEP_S = {LimitKind.BUDGET_DAILY: 2 * DAY_S, LimitKind.BUDGET_WEEKLY: 10 * DAY_S}


def keep_s(kind: LimitKind) -> float:
    """How long a store keeps what is used of a limit after it was asked last.

    A window of a budget is outlived by what runs at its end, and by clocks that are behind.
    """
    return _KEEP_S.get(kind, 40 * DAY_S)  # a month, and a week


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request may use up of one limit: of a budget, in one of its windows.

    Each window is counted apart, and none takes another's place (docs/billing.md, "Windows").
    """

    limit: str  # the limit's id
    kind: LimitKind
    most: int
    amount: int  # requests, tokens or nanodollars; never negative
    window: int = 0  # of a budget: the day it began
    seen: int = 0  # of a budget: what this replica knows to be spent in that window


@dataclass(frozen=True, slots=True)
class HoldAsk:
    member: str
    demands: tuple[Demand, ...]
    ttl_s: float


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit after the decision."""

    left: int  # requests, tokens, places or nanodollars that nobody holds
    wait_s: float  # of a rate: until what was asked for is there; 0 if it is
    spent: int  # of a budget: in the current window
    restored: bool = False  # not of a rate: the store knew nothing of it, or less than `seen`


@dataclass(frozen=True, slots=True)
class HoldGrant:
    """`refused` is the place of the first demand that does not fit; None if all do.

    `life` is that of the store: another number each time that it has begun empty.
    """

    refused: int | None
    states: tuple[LimitState, ...]
    life: int = 0

    @property
    def granted(self) -> bool:
        return self.refused is None


Settlement = tuple[HoldAsk, Sequence[int]]
"""A hold, and what was used of each of its demands."""


class LimitStore(Protocol):
    """Raises LimitsUnavailable from every method, within a fraction of a second."""

    async def reserve(self, ask: HoldAsk) -> HoldGrant:
        """Hold what is demanded of every limit, or nothing. Asking twice holds once."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
        """End holds with what was used of each demand; also those that have ended.

        Each one's limits after it.
        """
        ...

    async def renew(self, asks: Sequence[HoldAsk]) -> None:
        """Prolong holds of requests that run, also those that ended or that the store forgot."""
        ...

    async def life(self) -> int:
        """As in a grant."""
        ...

    async def close(self) -> None: ...
