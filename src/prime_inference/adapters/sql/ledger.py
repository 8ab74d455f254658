"""The ledger in SQL. Every write is one transaction; what is derived is written with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.database import Database, Row, Transaction, guarded
from prime_inference.domain.limits import MOST_AMOUNT
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import (
    REVENUE,
    Applied,
    EventsRefused,
    GroupBy,
    LedgerUnavailable,
    Transfer,
    TransferConflict,
    TransferRefused,
    UsageFilter,
    UsageSum,
    Verification,
)

EVENT_COLUMNS = UsageEvent.__struct_fields__
MOST_TOKENS = 2**32  # 32 times what is believed of an engine: sums of two billion events fit
MOST_OF = {
    **dict.fromkeys(
        ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"), MOST_TOKENS
    ),
    "cost": MOST_AMOUNT,
}
MOST_EVENTS = 2**63 // MOST_AMOUNT - 1  # at a time: no sum of theirs leaves 64 bits
MOST_PROBLEMS = 20  # of each kind that `verify` names; a broken ledger has millions


class SqlLedger:
    """Implements `ports.ledger.Ledger`; the tables are there (see `migrate`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def apply(self, source: str, events: Sequence[UsageEvent], now: int) -> Applied:
        if len(events) > MOST_EVENTS:
            raise EventsRefused(f"more than {MOST_EVENTS} events at a time")
        for event in events:
            _require_amounts(event)
        ordered = sorted(events, key=_identity)  # two shippers lock the same rows in one order
        with self._applying() as transaction:
            batch = _new_batch(transaction, source, now)
            rows = [(*(getattr(event, name) for name in EVENT_COLUMNS), batch) for event in ordered]
            fresh = transaction.insert_new("usage_event", (*EVENT_COLUMNS, "batch"), rows)
            transaction.run(statements.TRANSFERS_OF_EVENTS, batch=batch)
            transaction.run(statements.DAYS_OF_EVENTS, batch=batch)
            transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)
        return Applied(fresh, len(events) - fresh)

    @contextmanager
    def _applying(self) -> Iterator[Transaction]:
        try:
            with self._transaction() as transaction:
                yield transaction
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, self._database.refused):
                raise EventsRefused(str(error)) from error
            raise
        except (OverflowError, ValueError) as error:  # of a driver: what no column can hold
            raise EventsRefused(f"{type(error).__name__}: {error}") from error

    @contextmanager
    def _transferring(self) -> Iterator[Transaction]:
        try:
            with self._transaction() as transaction:
                yield transaction
        except LedgerUnavailable as error:
            if isinstance(error.__cause__, self._database.refused):
                raise TransferRefused(
                    "the books cannot hold it: a balance would leave 64 bits"
                ) from error
            raise

    def transfer(self, transfer: Transfer) -> bool:
        if not isinstance(transfer.amount, int) or transfer.amount > MOST_AMOUNT:
            raise ValueError(f"a transfer moves at most {MOST_AMOUNT} nanodollars")
        if transfer.amount < 0 or transfer.debit == transfer.credit:
            raise ValueError("a transfer moves an amount that is not negative to another account")
        row = _transfer_row(transfer)
        with self._transferring() as transaction:
            batch = _new_batch(transaction, "admin", transfer.at)
            columns = (*statements.TRANSFER_COLUMNS, "batch")
            if transaction.insert_new("transfer", columns, [(*row, batch)]):
                transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)
                return True
            (found,) = transaction.rows(
                statements.TRANSFER,
                tenant=transfer.tenant,
                reference=transfer.reference,
                kind=transfer.kind,
            )
        if _said(Transfer(*found)) != _said(transfer):
            raise TransferConflict(f"{transfer.kind} {transfer.reference} exists with other values")
        return False

    def now(self) -> float:
        return float(self._read(statements.NOW[self._database.dialect])[0][0])

    def balance(self, account: str) -> int:
        rows = self._read(statements.BALANCE, account=account)
        return int(rows[0][0]) if rows else 0

    def transfers(self, tenant: str, limit: int, offset: int = 0) -> Sequence[Transfer]:
        rows = self._read(statements.TRANSFERS, tenant=tenant, limit=limit, offset=offset)
        return [Transfer(*row) for row in rows]

    def transfer_count(self, tenant: str) -> int:
        return int(self._read(statements.TRANSFER_COUNT, tenant=tenant)[0][0])

    def payments(self, tenant: str, begin: int, end: int) -> Sequence[Transfer]:
        rows = self._read(statements.PAYMENTS, tenant=tenant, begin=begin, end=end)
        return [Transfer(*row) for row in rows]

    def periods_paid(self, tenant: str, reservation: str) -> int:
        rows = self._read(statements.PERIODS_PAID, tenant=tenant, about=reservation)
        return int(rows[0][0])

    def event(self, tenant: str, generation: str) -> UsageEvent | None:
        rows = self._read(statements.EVENT, tenant=tenant, generation=generation)
        return UsageEvent(*_event_values(rows[0])) if rows else None

    def events(self, tenant: str, limit: int, offset: int = 0) -> Sequence[UsageEvent]:
        rows = self._read(statements.EVENTS, tenant=tenant, limit=limit, offset=offset)
        return [UsageEvent(*_event_values(row)) for row in rows]

    def usage(self, group_by: Sequence[GroupBy], where: UsageFilter) -> Sequence[UsageSum]:
        statement, parameters = statements.usage(group_by, where)
        count = len(group_by)
        return [
            UsageSum(tuple(row[:count]), *map(statements.whole, row[count::2], row[count + 1 :: 2]))
            for row in self._read(statement, **parameters)
        ]

    def verify(self) -> Verification:
        with self._snapshot() as transaction:
            problems: list[str] = []
            for meaning, statement in statements.PROBLEMS.items():
                rows = transaction.rows(statement, limit=MOST_PROBLEMS)
                problems += [f"{meaning}: {' '.join(map(str, row))}" for row in rows]
            ((events, *event_cost),) = transaction.rows(statements.EVENT_TOTALS)
            ((transfers, accounts),) = transaction.rows(statements.COUNTS)
            revenue = transaction.rows(statements.BALANCE, account=REVENUE)
        return Verification(
            int(events),
            int(transfers),
            int(accounts),
            statements.whole(*event_cost),
            int(revenue[0][0]) if revenue else 0,
            tuple(problems),
        )

    def close(self) -> None:
        self._database.close()

    def _read(self, statement: str, **parameters: Any) -> list[Row]:
        with self._snapshot() as transaction:
            return transaction.rows(statement, **parameters)

    def _transaction(self) -> AbstractContextManager[Transaction]:
        return guarded(self._database, self._database.transaction(), LedgerUnavailable)

    def _snapshot(self) -> AbstractContextManager[Transaction]:
        return guarded(self._database, self._database.snapshot(), LedgerUnavailable)


def _identity(event: UsageEvent) -> tuple[str, str, str]:
    return event.identity


def _require_amounts(event: UsageEvent) -> None:
    """Raises EventsRefused for what would make sums leave 64 bits, which SQLite turns to floats."""
    for name, most in MOST_OF.items():
        if not 0 <= getattr(event, name) <= most:
            raise EventsRefused(f"{name} of generation {event.generation} is out of range")


def _new_batch(transaction: Transaction, source: str, now: int) -> int:
    ((batch,),) = transaction.rows(statements.NEW_BATCH, source=source, now=now)
    return int(batch)


def _transfer_row(transfer: Transfer) -> Row:
    return tuple(getattr(transfer, name) for name in statements.TRANSFER_COLUMNS)


def _said(transfer: Transfer) -> Row:
    """What a repeated transfer must say again: all but when."""
    return (transfer.debit, transfer.credit, transfer.amount, transfer.about, transfer.memo)


def _event_values(row: Row) -> Row:
    return tuple(
        bool(value) if name in ("streamed", "estimated") else value
        for name, value in zip(EVENT_COLUMNS, row, strict=True)
    )
