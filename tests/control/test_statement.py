"""A month's bill adds up to what the ledger has for that month."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.adapters.sqlite.database import SqliteDatabase
from prime_inference.billing.rating import usage_event
from prime_inference.control.statement import statement
from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.money import usd_text
from prime_inference.ports.ledger import CASH, Transfer, tenant_account
from tests.billing.samples import generation, price


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqlLedger]:
    database = SqliteDatabase(tmp_path / "ledger.db", "normal")
    migrate(database)
    yield SqlLedger(database)
    database.close()


def moment(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def test_a_month_has_its_own_usage_and_payments_and_no_others(ledger: SqlLedger):
    times = ["2026-11-30T23:59:59", "2026-12-01T00:00:00", "2026-12-31T23:59:59", "2027-01-01"]
    events = [
        usage_event(generation(id=f"g{n}", started_at=moment(text)), price())
        for n, text in enumerate(times)
    ]
    ledger.apply("r", events, 1)
    for name, text in (("early", times[0]), ("paid", times[1]), ("late", times[3])):
        at = int(moment(text) * 1e6)
        own = tenant_account("team-a")
        ledger.transfer(Transfer("team-a", name, "credit", CASH, own, 1_000_000, at))
    bill = statement(ledger, "team-a", "2026-12")
    cost = events[0].cost
    assert [line["requests"] for line in bill["lines"]] == [2]  # type: ignore[attr-defined]
    assert bill["usage_usd"] == usd_text(2 * cost)
    assert [each["reference"] for each in bill["transfers"]] == ["paid"]  # type: ignore[attr-defined]
    assert bill["total_due_usd"] == usd_text(2 * cost - 1_000_000)
    assert statement(ledger, "team-b", "2026-12")["lines"] == []


@pytest.mark.parametrize("month", ["2026-13", "2026", "2026-1", "x"])
def test_what_is_no_month_is_refused(ledger: SqlLedger, month: str):
    with pytest.raises(InvalidRequest):
        statement(ledger, "team-a", month)
