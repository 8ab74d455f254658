"""The record of what was used and who paid for it.

Called from worker threads, never from the event loop: every method may wait for a
database. All of them raise LedgerUnavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from prime_inference.domain.usage_event import UsageEvent

TransferKind = Literal["usage", "credit", "adjustment", "reservation"]
GroupBy = Literal["day", "key_id", "model", "pool", "tenant"]

REVENUE = "revenue"
CASH = "cash"
ADJUSTMENTS = "adjustments"


def tenant_account(tenant: str) -> str:
    return f"tenant:{tenant}"


class EventsRefused(Exception):
    """The ledger answers, and will never take these events together as they are."""


class LedgerUnavailable(Exception):
    """The database did not do what it was asked; nothing of it happened, or all of it."""


class TransferRefused(Exception):
    """The ledger answers, and will never take this transfer: a balance would leave 64 bits."""


class TransferConflict(Exception):
    """A transfer of that reference exists and says something else."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a batch of events."""

    fresh: int
    repeated: int  # the ledger had them


@dataclass(frozen=True, slots=True)
class Transfer:
    """An amount that moves from `debit` to `credit`; unique by (tenant, reference, kind)."""

    tenant: str
    reference: str
    kind: TransferKind
    debit: str
    credit: str
    amount: int  # nanodollars
    at: int  # microseconds since the epoch
    about: str = ""  # the generation that an adjustment is about; the reservation that is paid
    memo: str = ""


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """Which usage to sum up; days count from the epoch, both ends belong to it."""

    tenant: str | None = None
    key_id: str | None = None
    model: str | None = None
    first_day: int | None = None
    last_day: int | None = None


@dataclass(frozen=True, slots=True)
class UsageSum:
    """Sums of usage under one combination of `group` values, in the order asked for."""

    group: tuple[str | int, ...]
    requests: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost: int  # nanodollars


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` looked at, and everything that is not as it must be."""

    events: int
    transfers: int
    accounts: int
    event_cost: int
    revenue: int
    problems: tuple[str, ...] = field(default=())

    @property
    def sound(self) -> bool:
        return not self.problems


class Ledger(Protocol):
    def apply(self, source: str, events: Sequence[UsageEvent], now: int) -> Applied:
        """Write the events that are not there yet, and all that follows from them, or nothing.

        `source` names the replica, `now` is in microseconds since the epoch.
        """
        ...

    def transfer(self, transfer: Transfer) -> bool:
        """Write what no event says; False if it is there.

        Raises TransferConflict, TransferRefused.
        """
        ...

    def now(self) -> float:
        """The database's clock, in seconds since the epoch."""
        ...

    def balance(self, account: str) -> int:
        """Nanodollars; 0 for an account that nothing has moved to or from."""
        ...

    def transfers(self, tenant: str, limit: int, offset: int = 0) -> Sequence[Transfer]:
        """Newest first."""
        ...

    def transfer_count(self, tenant: str) -> int:
        """How many there are."""
        ...

    def payments(self, tenant: str, begin: int, end: int) -> Sequence[Transfer]:
        """All transfers but usage from `begin` until before `end`, oldest first."""
        ...

    def periods_paid(self, tenant: str, reservation: str) -> int:
        """How many periods of a reservation have a transfer."""
        ...

    def event(self, tenant: str, generation: str) -> UsageEvent | None:
        """The usage event of a generation."""
        ...

    def events(self, tenant: str, limit: int, offset: int = 0) -> Sequence[UsageEvent]:
        """Newest first."""
        ...

    def usage(self, group_by: Sequence[GroupBy], where: UsageFilter) -> Sequence[UsageSum]:
        """Sums of usage, by the groups in their order."""
        ...

    def verify(self) -> Verification:
        """Prove from the tables that events, transfers, balances and sums are the same."""
        ...

    def close(self) -> None: ...
