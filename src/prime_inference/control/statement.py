"""A tenant's bill for one month: used, by model and pool; reserved; and what was paid."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.moments import FIRST_YEAR, LAST_YEAR
from prime_inference.domain.money import usd_text
from prime_inference.ports.ledger import Ledger, Transfer, UsageFilter, tenant_account

MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
EPOCH = date(1970, 1, 1)
MICRO = 1_000_000


def statement(ledger: Ledger, tenant: str, month: str) -> dict[str, object]:
    """Lines of usage, other transfers, and their sums. Raises InvalidRequest.

    Usage is what the ledger's days have; a generation belongs to the day on which it was
    accepted, so that a month that is over does not change but by its late events.
    """
    found = MONTH.fullmatch(month)
    if found is None:
        raise InvalidRequest("A month is like 2026-12.", param="month")
    if not FIRST_YEAR <= int(found[1]) <= LAST_YEAR:
        raise InvalidRequest(f"A month is of the years {FIRST_YEAR} to {LAST_YEAR}.", param="month")
    first = date(int(found[1]), int(found[2]), 1)
    after = (first + timedelta(days=32)).replace(day=1)
    where = UsageFilter(
        tenant, first_day=(first - EPOCH).days, last_day=(after - EPOCH).days - 1
    )  # fmt: skip
    lines = ledger.usage(("model", "pool"), where)
    others = _others(ledger, tenant, first, after)
    used = sum(line.cost for line in lines)
    reserved = sum(-amount for transfer, amount in others if transfer.kind == "reservation")
    paid = sum(amount for _, amount in others) + reserved
    return {
        "tenant": tenant,
        "month": month,
        "lines": [
            {
                "model": line.group[0],
                "pool": line.group[1],
                "requests": line.requests,
                "prompt_tokens": line.prompt_tokens,
                "cached_tokens": line.cached_tokens,
                "completion_tokens": line.completion_tokens,
                "reasoning_tokens": line.reasoning_tokens,
                "cost_usd": usd_text(line.cost),
            }
            for line in lines
        ],
        "usage_usd": usd_text(used),
        "reservations_usd": usd_text(reserved),
        "transfers": [
            {
                "kind": transfer.kind,
                "reference": transfer.reference,
                "amount_usd": usd_text(amount),
                "about": transfer.about,
                "memo": transfer.memo,
            }
            for transfer, amount in others
        ],
        "credits_and_adjustments_usd": usd_text(paid),
        "total_due_usd": usd_text(used + reserved - paid),
    }


def _others(ledger: Ledger, tenant: str, first: date, after: date) -> list[tuple[Transfer, int]]:
    """All transfers of the month but usage, with what they are to the tenant."""
    begin, end = _microseconds(first), _microseconds(after)
    account = tenant_account(tenant)
    transfers = ledger.payments(tenant, begin, end)
    return [
        (transfer, transfer.amount if transfer.credit == account else -transfer.amount)
        for transfer in transfers
    ]


def _microseconds(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * MICRO
