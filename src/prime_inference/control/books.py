"""The books in the admin API: usage, bills, payments, and the proof of them all."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict

from prime_inference.accounts.audit import FIRST, first_break
from prime_inference.control.calls import Call, Routes
from prime_inference.control.names import Names
from prime_inference.control.requests import NewTransfer
from prime_inference.control.statement import statement
from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.limits import MOST_AMOUNT
from prime_inference.domain.money import nanodollars, usd_text
from prime_inference.gateway.account_api import usage_report, wallet
from prime_inference.ports.accounts import Accounts
from prime_inference.ports.ledger import ADJUSTMENTS, CASH, Ledger, Transfer, tenant_account

MICRO = 1_000_000
AUDIT_ROWS = 10_000_000  # read whole when the chain is checked


class BookOperations:
    """Over ledger and audit log; `verifier` is the ledger on a connection of its own, `names`
    knows all that there is at a moment.
    """

    def __init__(
        self,
        accounts: Accounts,
        ledger: Ledger,
        verifier: Ledger,
        names: Callable[[], Names],
        wall_clock: Callable[[], float],
        set_aside: Callable[[], int],
    ) -> None:
        self._accounts = accounts
        self._ledger = ledger
        self._verifier = verifier
        self._names = names
        self._now = wall_clock
        self._set_aside = set_aside

    def routes(self) -> Routes:
        return {
            ("GET", "usage"): self.usage,
            ("GET", "wallet/([^/]+)"): self.wallet,
            ("GET", "statements/([^/]+)/([^/]+)"): self.statement,
            ("POST", "credits"): self.credit,
            ("POST", "adjustments"): self.adjust,
            ("GET", "ledger/verify"): self.verify,
            ("GET", "audit"): self.audit,
        }

    def usage(self, call: Call) -> object:
        tenant = call.query.get("tenant")
        if tenant is not None:
            self._names().require_tenant(tenant)
        return usage_report(self._ledger, call.query, tenant)

    def wallet(self, call: Call) -> object:
        self._names().require_tenant(call.parts[0])
        return wallet(self._ledger, call.parts[0], call.query)

    def statement(self, call: Call) -> object:
        tenant, month = call.parts
        self._names().require_tenant(tenant)
        return statement(self._ledger, tenant, month)

    def credit(self, call: Call) -> object:
        wanted = call.decode(NewTransfer)
        amount = nanodollars(wanted.amount_usd)
        if amount <= 0:
            raise InvalidRequest("A credit is more than nothing.", param="amount_usd")
        return self._transfer(call, wanted, amount, CASH)

    def adjust(self, call: Call) -> object:
        """In the tenant's favour, or against it if the amount is negative."""
        wanted = call.decode(NewTransfer)
        return self._transfer(call, wanted, nanodollars(wanted.amount_usd), ADJUSTMENTS)

    def verify(self, call: Call) -> object:
        found = self._verifier.verify()
        entries = self._accounts.audit(AUDIT_ROWS)
        broken = first_break(entries)
        problems = list(found.problems)
        if aside := self._set_aside():
            problems.append(f"{aside} events of this gateway are set aside (docs/billing.md)")
        return {
            "sound": not problems and broken is None,
            "events": found.events,
            "transfers": found.transfers,
            "accounts": found.accounts,
            "event_cost_usd": usd_text(found.event_cost),
            "revenue_usd": usd_text(found.revenue),
            "problems": problems,
            "audit_broken_at": broken,
            "audit_entries": len(entries),
            "audit_head": entries[-1].hash if entries else FIRST,
        }

    def audit(self, call: Call) -> object:
        text = call.query.get("limit", "100")
        if not re.fullmatch(r"[0-9]{1,8}", text):
            raise InvalidRequest("'limit' is a number below 100,000,000.", param="limit")
        entries = self._accounts.audit(int(text))
        return {"entries": [asdict(entry) for entry in entries]}

    def _transfer(self, call: Call, wanted: NewTransfer, amount: int, other: str) -> object:
        self._names().require_tenant(wanted.tenant)
        if abs(amount) > MOST_AMOUNT:
            raise InvalidRequest(
                f"A transfer moves at most ${usd_text(MOST_AMOUNT)}.", param="amount_usd"
            )
        own = tenant_account(wanted.tenant)
        debit, credit = (other, own) if amount >= 0 else (own, other)
        now = self._now()
        transfer = Transfer(
            wanted.tenant,
            wanted.reference,
            "credit" if other == CASH else "adjustment",
            debit,
            credit,
            abs(amount),
            int(now * MICRO),
            wanted.about,
            wanted.memo,
        )
        fresh = self._ledger.transfer(transfer)
        # also when it is repeated: gateways read wallets anew after an entry, and the first try
        # may have ended between ledger and entry
        action = transfer.kind if fresh else f"{transfer.kind}.again"
        detail = f"{wanted.reference} {wanted.amount_usd}"
        self._accounts.note(action, wanted.tenant, detail, call.actor, now)
        return {
            "reference": wanted.reference,
            "fresh": fresh,
            "balance_usd": usd_text(self._ledger.balance(own)),
        }
