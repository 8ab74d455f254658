"""What the modules of keys, limits, prices, reservations and tenants work on."""

from __future__ import annotations

from collections.abc import Callable

from prime_inference.control.names import Names
from prime_inference.ports.accounts import Accounts


class AccountOperations:
    """Over the accounts; `names` knows all that there is at a moment, `wall_clock` is in seconds
    since the epoch."""

    def __init__(
        self, accounts: Accounts, names: Callable[[], Names], wall_clock: Callable[[], float]
    ) -> None:
        self._accounts = accounts
        self._names = names
        self._now = wall_clock
