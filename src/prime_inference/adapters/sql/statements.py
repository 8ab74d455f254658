"""The ledger's statements, for SQLite and Postgres alike."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import GroupBy, UsageFilter

DAY_US = 86_400_000_000
LAST_DAY = 10**6  # since the epoch: in the year 4707
TRANSFER_COLUMNS = (
    "tenant", "reference", "kind", "debit", "credit", "amount", "at", "about", "memo",
)  # fmt: skip
SUMS = (
    "requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost",
)  # fmt: skip
GROUPS = ("day", "key_id", "model", "pool", "tenant")

HALF_BITS = 32
HALF = 2**HALF_BITS


def halves(value: str, sign: str = "") -> tuple[str, str]:
    """The sums of the upper and of the lower halves of 64-bit numbers; `whole` puts them together.

    SQLite's own sum fails beyond 64 bits, and where only the way to it leaves them. These hold
    for two billion rows.
    """
    return f"sum({sign}({value} >> {HALF_BITS}))", f"sum({sign}({value} & {HALF - 1}))"


def whole(upper: int | None, lower: int | None) -> int:
    """The exact sum, whatever its size; 0 of no rows."""
    return (int(upper or 0) << HALF_BITS) + int(lower or 0)


def not_zero(value: str, sign: str = "") -> str:
    """Whether a group's numbers add up to anything else than nothing."""
    upper, lower = halves(value, sign)
    return f"({lower} % {HALF} <> 0 OR {upper} + {lower} / {HALF} <> 0)"


NEW_BATCH = "INSERT INTO batch (source, applied_at) VALUES (:source, :now) RETURNING id"

TRANSFERS_OF_EVENTS = """
INSERT INTO transfer (tenant, reference, kind, debit, credit, amount, at, about, memo, batch)
SELECT tenant, generation, kind, 'tenant:' || tenant, 'revenue', cost, at, '', '', batch
FROM usage_event WHERE batch = :batch AND cost > 0
"""

DAYS_OF_EVENTS = f"""
INSERT INTO usage_day (tenant, day, key_id, model, pool, requests, prompt_tokens, cached_tokens,
                       completion_tokens, reasoning_tokens, cost)
SELECT tenant, at / {DAY_US}, key_id, model, pool, count(*), sum(prompt_tokens),
       sum(cached_tokens), sum(completion_tokens), sum(reasoning_tokens), sum(cost)
FROM usage_event WHERE batch = :batch
GROUP BY tenant, at / {DAY_US}, key_id, model, pool
ORDER BY tenant, at / {DAY_US}, key_id, model, pool
ON CONFLICT (tenant, day, key_id, model, pool) DO UPDATE SET
    requests = usage_day.requests + excluded.requests,
    prompt_tokens = usage_day.prompt_tokens + excluded.prompt_tokens,
    cached_tokens = usage_day.cached_tokens + excluded.cached_tokens,
    completion_tokens = usage_day.completion_tokens + excluded.completion_tokens,
    reasoning_tokens = usage_day.reasoning_tokens + excluded.reasoning_tokens,
    cost = usage_day.cost + excluded.cost
"""

BALANCES_OF_TRANSFERS = """
INSERT INTO balance (account, amount)
SELECT account, sum(amount) FROM (
    SELECT credit AS account, amount FROM transfer WHERE batch = :batch
    UNION ALL
    SELECT debit, -amount FROM transfer WHERE batch = :batch
) AS moved
WHERE true
GROUP BY account ORDER BY account
ON CONFLICT (account) DO UPDATE SET amount = balance.amount + excluded.amount
"""

NOW = {
    "sqlite": "SELECT (julianday('now') - 2440587.5) * 86400",
    "postgres": "SELECT extract(epoch FROM clock_timestamp())",
}
"""Seconds since the epoch, in each dialect."""
BALANCE = "SELECT amount FROM balance WHERE account = :account"
TRANSFER = f"""
SELECT {", ".join(TRANSFER_COLUMNS)} FROM transfer
WHERE tenant = :tenant AND reference = :reference AND kind = :kind
"""
TRANSFERS = f"""
SELECT {", ".join(TRANSFER_COLUMNS)} FROM transfer WHERE tenant = :tenant
ORDER BY at DESC, reference DESC LIMIT :limit OFFSET :offset
"""
TRANSFER_COUNT = "SELECT count(*) FROM transfer WHERE tenant = :tenant"
PAYMENTS = f"""
SELECT {", ".join(TRANSFER_COLUMNS)} FROM transfer
WHERE tenant = :tenant AND at >= :begin AND at < :end AND kind <> 'usage'
ORDER BY at, reference
"""
PERIODS_PAID = """
SELECT count(*) FROM transfer
WHERE tenant = :tenant AND kind <> 'usage' AND kind = 'reservation' AND about = :about
"""
FIRST_PERIODS_UNPAID = """
SELECT price FROM reservation
WHERE tenant = :tenant AND (ends_at IS NULL OR ends_at > starts_at) AND NOT EXISTS (
    SELECT 1 FROM transfer
    WHERE transfer.tenant = reservation.tenant AND kind <> 'usage' AND kind = 'reservation'
    AND about = reservation.id
)
"""
IN_OR_OUT = "(CASE WHEN credit = 'tenant:' || tenant THEN 1 ELSE -1 END) * "
PAID = f"""
SELECT tenant, {", ".join(halves("amount", IN_OR_OUT))}
FROM transfer
WHERE kind <> 'usage' AND tenant IN (SELECT id FROM tenant WHERE payment = 'prepaid')
GROUP BY tenant
"""
EVENT = f"""
SELECT {", ".join(UsageEvent.__struct_fields__)} FROM usage_event
WHERE tenant = :tenant AND generation = :generation AND kind = 'usage'
"""
EVENTS = f"""
SELECT {", ".join(UsageEvent.__struct_fields__)} FROM usage_event WHERE tenant = :tenant
ORDER BY at DESC, generation DESC LIMIT :limit OFFSET :offset
"""

EVENT_TOTALS = f"""SELECT count(*), {", ".join(halves("cost"))} FROM usage_event"""
COUNTS = "SELECT (SELECT count(*) FROM transfer), (SELECT count(*) FROM balance)"

PROBLEMS = {
    "an event whose transfer is missing or says something else": """
        SELECT e.tenant, e.generation, e.cost, t.amount FROM usage_event e
        LEFT JOIN transfer t
            ON t.tenant = e.tenant AND t.reference = e.generation AND t.kind = e.kind
        WHERE e.cost > 0 AND (
            t.amount IS NULL OR t.amount <> e.cost OR t.at <> e.at
            OR t.debit <> 'tenant:' || e.tenant OR t.credit <> 'revenue'
        ) LIMIT :limit
    """,
    "a usage transfer without its event": """
        SELECT t.tenant, t.reference, t.amount FROM transfer t
        LEFT JOIN usage_event e
            ON e.tenant = t.tenant AND e.generation = t.reference AND e.kind = t.kind
        WHERE t.kind = 'usage' AND (e.cost IS NULL OR e.cost = 0) LIMIT :limit
    """,
    "a balance that is not the sum of its transfers": f"""
        SELECT account FROM (
            SELECT credit AS account, amount, 1 AS side FROM transfer
            UNION ALL SELECT debit, amount, -1 FROM transfer
            UNION ALL SELECT account, amount, -1 FROM balance
        ) AS both_sides
        GROUP BY account HAVING {not_zero("amount", "side * ")} LIMIT :limit
    """,
    "balances that do not cancel out": f"""
        SELECT count(*) FROM balance HAVING {not_zero("amount")} LIMIT :limit
    """,
    "a day whose sums are not those of its events": f"""
        SELECT tenant, day, key_id, model, pool FROM (
            SELECT tenant, at / {DAY_US} AS day, key_id, model, pool, 1 AS requests,
                   prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost,
                   1 AS side
            FROM usage_event
            UNION ALL
            SELECT tenant, day, key_id, model, pool, {", ".join(SUMS)}, -1 FROM usage_day
        ) AS both_sides
        GROUP BY tenant, day, key_id, model, pool
        HAVING {" OR ".join(not_zero(name, "side * ") for name in SUMS)}
        LIMIT :limit
    """,
}
"""What must never be there, and how to find it."""


def usage(group_by: Sequence[GroupBy], where: UsageFilter) -> tuple[str, dict[str, object]]:
    """Sums of `usage_day` and the parameters. Raises ValueError for an unknown group."""
    unknown = set(group_by) - set(GROUPS)
    if unknown:
        raise ValueError(f"usage is not grouped by {', '.join(sorted(unknown))}")
    bounds = {
        "tenant": "tenant = :tenant",
        "key_id": "key_id = :key_id",
        "model": "model = :model",
        "first_day": "day >= :first_day",
        "last_day": "day <= :last_day",
    }
    given = {name: value for name in bounds if (value := getattr(where, name)) is not None}
    if "first_day" in given:  # without an upper bound SQLite expects a quarter of all, and scans
        given.setdefault("last_day", LAST_DAY)
    conditions = " AND ".join(bounds[name] for name in given) or "true"
    groups = ", ".join(group_by)
    columns = ", ".join([*group_by, *(half for name in SUMS for half in halves(name))])
    order = f" GROUP BY {groups} ORDER BY {groups}" if group_by else ""
    return f"SELECT {columns} FROM usage_day WHERE {conditions}{order}", given
