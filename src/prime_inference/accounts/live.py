"""The directory of a replica, kept up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prime_inference.accounts.directory import Directory, Records
from prime_inference.domain.keys import ApiKey
from prime_inference.ports.accounts import Accounts, AccountsUnavailable

log = logging.getLogger(__name__)

POLL_S = 2.0  # a revocation reaches every replica within 10 s: this, a load, and a lost poll


class LiveDirectory:
    """Holds the last directory that could be read: nobody is refused because a database is away.

    `changed` is called with each new directory. Implements `ports.keys.KeyStore`.
    """

    def __init__(
        self, accounts: Accounts, changed: Callable[[Directory], None] = lambda directory: None
    ) -> None:
        self._accounts = accounts
        self._changed = changed
        self.current = Directory.of(Records())
        self.failing = False

    def find(self, key_id: str) -> ApiKey | None:
        return self.current.find(key_id)

    async def refresh(self) -> None:
        """Read what has changed. Raises AccountsUnavailable."""
        if await asyncio.to_thread(self._accounts.revision) != self.current.revision:
            records = await asyncio.to_thread(self._accounts.load)
            self.current = Directory.of(records)
            self._changed(self.current)

    async def run(self) -> None:
        """Look for changes until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
            except AccountsUnavailable as error:
                if not self.failing:
                    log.warning("accounts are as they were read last: %s", error)
                self.failing = True
            else:
                self.failing = False
