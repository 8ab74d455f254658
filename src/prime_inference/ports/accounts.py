"""Where teams, keys, prices, limits and reservations are kept. Called from worker threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from prime_inference.domain.accounts import Payment, Role, Tenant
from prime_inference.domain.keys import ApiKey
from prime_inference.domain.limits import Limit
from prime_inference.domain.prices import Price
from prime_inference.domain.reservations import Reservation


class AccountsUnavailable(Exception):
    """The database did not do what it was asked."""


class UnknownAccount(Exception):
    """There is no tenant, key, limit or reservation of that id."""


class AccountExists(Exception):
    """There is one of that name, or that version."""


class CannotPay(Exception):
    """A prepaid tenant has less than that costs; `left` nanodollars."""

    def __init__(self, left: int) -> None:
        super().__init__(f"{left} nanodollars are left")
        self.left = left


class Accounts(Protocol):
    """Every change is one transaction with its entry in the audit log.

    Changes take who makes them and when, in seconds since the epoch. All raise
    AccountsUnavailable; changes raise UnknownAccount and AccountExists.
    """

    def revision(self) -> int:
        """A number that grows with every change."""
        ...

    def load(self) -> Any:
        """Everything, as of one moment: an `accounts.directory.Records`."""
        ...

    def add_tenant(self, tenant: Tenant, actor: str) -> None: ...
    def set_payment(self, tenant: str, payment: Payment, actor: str, now: float) -> None: ...
    def set_member(self, team: str, person: str, role: Role, actor: str, now: float) -> None: ...
    def remove_member(self, team: str, person: str, actor: str, now: float) -> None: ...
    def add_key(self, key: ApiKey, actor: str) -> None: ...
    def replace_key(self, key: ApiKey, action: str, actor: str, now: float) -> None: ...
    def add_price(self, price: Price, actor: str, now: float) -> None: ...
    def add_limit(self, limit: Limit, actor: str, now: float) -> None: ...
    def remove_limit(self, limit_id: str, actor: str, now: float) -> None: ...

    def add_reservation(
        self,
        reservation: Reservation,
        actor: str,
        fits: Callable[[Sequence[Reservation]], object] | None = None,
    ) -> None:
        """Raises CannotPay where its tenant is prepaid and has not its first period's price,
        beside those of its others that are not paid yet; and what `fits` raises, which is asked
        about all others while nobody else can add one."""
        ...

    def end_reservation(self, reservation_id: str, ends_at: float, actor: str, now: float) -> None:
        """It ends at that time, whatever its end was."""
        ...

    def note(self, action: str, subject: str, detail: str, actor: str, now: float) -> None:
        """An entry in the audit log for what is kept elsewhere (a credit, an adjustment)."""
        ...

    def audit(self, limit: int, offset: int = 0) -> Sequence[Any]:
        """Entries of the audit log, oldest first."""
        ...

    def close(self) -> None: ...
