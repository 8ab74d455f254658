"""Bounds on what keys, tenants and models may use."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from prime_inference.domain.money import usd_text

EPOCH = date(1970, 1, 1)
DAY_S = 86_400.0
MOST_AMOUNT = (
    2**52
)  # sums of two are exact in doubles, which Redis' Lua counts in: 4.5 million dollars


class LimitKind(enum.StrEnum):
    """What is counted. Budgets are in nanodollars and begin anew at midnight UTC."""

    is_budget: bool
    is_rate: bool
    is_derived: bool  # nobody sets it: it follows from something else

    def __init__(self, value: str) -> None:
        # attributes: asked for with every request
        self.is_budget = value.startswith("budget_") or value == "wallet"
        self.is_rate = value.endswith("_per_minute")
        self.is_derived = value in ("wallet", "reserved_output_tokens_per_minute")

    REQUESTS_PER_MINUTE = "requests_per_minute"
    TOKENS_PER_MINUTE = "tokens_per_minute"
    CONCURRENCY = "concurrency"
    BUDGET_DAILY = "budget_daily"
    BUDGET_WEEKLY = "budget_weekly"  # from Monday
    BUDGET_MONTHLY = "budget_monthly"
    BUDGET_TOTAL = "budget_total"
    WALLET = "wallet"  # all that a prepaid tenant has paid in
    RESERVED_OUTPUT = "reserved_output_tokens_per_minute"  # completion tokens of a reservation


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` of a kind, over the requests that match all that is not None.

    A limit with only a model bounds everybody's use of it; with key and model, that key's.
    """

    id: str
    kind: LimitKind
    most: int
    key_id: str | None = None
    tenant: str | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.most <= MOST_AMOUNT:
            most = f"${usd_text(MOST_AMOUNT)}" if self.kind.is_budget else MOST_AMOUNT
            raise ValueError(f"a limit is between 0 and {most}")

    def matches(self, key_id: str, tenant: str, model: str) -> bool:
        """Whether a request of that key, billed to that tenant, for that model counts."""
        return (
            self.key_id in (None, key_id)
            and self.tenant in (None, tenant)
            and self.model in (None, model)
        )


def wallet_limit(tenant: str, paid: int, changes: int = 0) -> Limit:
    """What a tenant that has paid in so many nanodollars may ever spend.

    `changes` of its payment make it another limit, which begins with what the ledger has: while
    the tenant was invoiced nobody counted.
    """
    most = min(max(0, paid), MOST_AMOUNT)
    return Limit(f"wallet:{tenant}:{changes}", LimitKind.WALLET, most, tenant=tenant)


def window_start(kind: LimitKind, moment: float) -> int:
    """The day, since the epoch, on which a budget's current window began; 0 for the total."""
    return _window_start(kind, int(moment // DAY_S))


@lru_cache(maxsize=64)
def _window_start(kind: LimitKind, day: int) -> int:
    on = EPOCH + timedelta(days=day)
    if kind is LimitKind.BUDGET_DAILY:
        return day
    if kind is LimitKind.BUDGET_WEEKLY:
        return day - on.weekday()
    if kind is LimitKind.BUDGET_MONTHLY:
        return day - on.day + 1
    return 0


def window_last_day(kind: LimitKind, start: int) -> int | None:
    """The last day of the window of a budget that began on that day; None for the total."""
    if kind is LimitKind.BUDGET_DAILY:
        return start
    if kind is LimitKind.BUDGET_WEEKLY:
        return start + 6
    if kind is LimitKind.BUDGET_MONTHLY:
        next_month = (EPOCH + timedelta(days=start + 31)).replace(day=1)
        return (next_month - EPOCH).days - 1
    return None


def window_end(kind: LimitKind, moment: float) -> float | None:
    """When a budget's current window ends, in seconds since the epoch; None for the total."""
    last = window_last_day(kind, window_start(kind, moment))
    return None if last is None else (last + 1) * DAY_S
