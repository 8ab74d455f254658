"""Accounts, prices, limits and reservations in SQL; each change with its entry in the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields

import msgspec

from prime_inference.accounts.audit import FIRST, AuditEntry, chained
from prime_inference.accounts.directory import Records
from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.database import Database, Row, Transaction, guarded
from prime_inference.domain.accounts import Member, Payment, Role, Tenant
from prime_inference.domain.keys import ApiKey, EarlierText, Scope
from prime_inference.domain.limits import Limit, LimitKind
from prime_inference.domain.prices import Price
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.ports.accounts import (
    AccountExists,
    AccountsUnavailable,
    CannotPay,
    UnknownAccount,
)
from prime_inference.ports.ledger import tenant_account

MICRO = 1_000_000
TENANT = ("id", "kind", "name", "slug", "created_at", "payment", "payment_changes")
MEMBER = ("team", "person", "role")
KEY = (
    "key_id", "tenant", "digest", "created_at", "name", "last_four", "expires_at", "revoked_at",
    "models", "routes", "networks", "earlier",
)  # fmt: skip
PLAIN = KEY[:8]  # columns that are attributes as they are
PRICE = Price.__struct_fields__
LIMIT = tuple(field.name for field in fields(Limit))
RESERVATION = tuple(field.name for field in fields(Reservation))
AUDIT = tuple(field.name for field in fields(AuditEntry))

_names = msgspec.json.Decoder(list[str])
_texts = msgspec.json.Decoder(list[tuple[str, float, str]])


class SqlAccounts:
    """Implements `ports.accounts.Accounts`; the tables are there (see `migrate`)."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- reading

    def revision(self) -> int:
        with self._snapshot() as transaction:
            return _revision(transaction)

    def load(self) -> Records:
        with self._snapshot() as transaction:
            return Records(
                _revision(transaction),
                [Tenant(*row) for row in _all(transaction, "tenant", TENANT)],
                [Member(t, p, Role(role)) for t, p, role in _all(transaction, "member", MEMBER)],
                [_key(row) for row in _all(transaction, "api_key", KEY)],
                [_price(row) for row in _all(transaction, "price", PRICE)],
                [_limit(row) for row in _all(transaction, "usage_limit", LIMIT)],
                {
                    tenant: statements.whole(upper, lower)
                    for tenant, upper, lower in transaction.rows(statements.PAID)
                },
                [_reservation(row) for row in _all(transaction, "reservation", RESERVATION)],
            )

    def audit(self, limit: int, offset: int = 0) -> Sequence[AuditEntry]:
        with self._snapshot() as transaction:
            rows = transaction.rows(
                f"SELECT {', '.join(AUDIT)} FROM audit ORDER BY place LIMIT :limit OFFSET :offset",
                limit=limit,
                offset=offset,
            )
        return [AuditEntry(*row) for row in rows]

    # -- changing

    def add_tenant(self, tenant: Tenant, actor: str) -> None:
        row = tuple(getattr(tenant, name) for name in TENANT)
        with self._change(f"{tenant.kind}.create", tenant.id, actor, tenant.created_at, row) as t:
            taken = t.rows("SELECT 1 FROM tenant WHERE slug = :slug", slug=tenant.slug)
            if taken or not t.insert_new("tenant", TENANT, [row]):
                raise AccountExists(f"{tenant.slug} exists")

    def set_payment(self, tenant: str, payment: Payment, actor: str, now: float) -> None:
        with self._change("tenant.payment", tenant, actor, now, payment) as transaction:
            statement = (
                "UPDATE tenant SET payment = :payment, payment_changes = payment_changes + 1"
                " WHERE id = :id"
            )
            if not transaction.run(statement, payment=payment, id=tenant):
                raise UnknownAccount(f"there is no tenant {tenant}")

    def set_member(self, team: str, person: str, role: Role, actor: str, now: float) -> None:
        with self._change("member.set", team, actor, now, [person, role]) as transaction:
            _require_tenant(transaction, team, "team")
            _require_tenant(transaction, person, "person")
            transaction.run(
                "INSERT INTO member (team, person, role) VALUES (:team, :person, :role)"
                " ON CONFLICT (team, person) DO UPDATE SET role = excluded.role",
                team=team,
                person=person,
                role=str(role),
            )

    def remove_member(self, team: str, person: str, actor: str, now: float) -> None:
        with self._change("member.remove", team, actor, now, [person]) as transaction:
            statement = "DELETE FROM member WHERE team = :team AND person = :person"
            if not transaction.run(statement, team=team, person=person):
                raise UnknownAccount(f"{person} is not a member of {team}")

    def add_key(self, key: ApiKey, actor: str) -> None:
        with self._change("key.create", key.key_id, actor, key.created_at, _shown(key)) as t:
            _require_tenant(t, key.tenant)
            t.insert_new("api_key", KEY, [_key_row(key)])

    def replace_key(self, key: ApiKey, action: str, actor: str, now: float) -> None:
        with self._change(action, key.key_id, actor, now, _shown(key)) as transaction:
            values = dict(zip(KEY, _key_row(key), strict=True))
            changes = ", ".join(f"{name} = :{name}" for name in KEY[1:])
            statement = f"UPDATE api_key SET {changes} WHERE key_id = :key_id"
            if not transaction.run(statement, **values):
                raise UnknownAccount(f"there is no key {key.key_id}")

    def add_price(self, price: Price, actor: str, now: float) -> None:
        row = msgspec.structs.astuple(price)
        with self._change("price.add", price.model, actor, now, row[1:]) as transaction:
            if not transaction.insert_new("price", PRICE, [row]):
                raise AccountExists(f"{price.model} has a version {price.version}")

    def add_limit(self, limit: Limit, actor: str, now: float) -> None:
        row = tuple(getattr(limit, name) for name in LIMIT)
        row = (row[0], str(limit.kind), *row[2:])
        with self._change("limit.add", limit.id, actor, now, row[1:]) as transaction:
            if limit.tenant is not None:
                _require_tenant(transaction, limit.tenant)
            transaction.insert_new("usage_limit", LIMIT, [row])

    def remove_limit(self, limit_id: str, actor: str, now: float) -> None:
        with self._change("limit.remove", limit_id, actor, now, []) as transaction:
            if not transaction.run("DELETE FROM usage_limit WHERE id = :id", id=limit_id):
                raise UnknownAccount(f"there is no limit {limit_id}")

    def add_reservation(
        self,
        reservation: Reservation,
        actor: str,
        fits: Callable[[Sequence[Reservation]], object] | None = None,
    ) -> None:
        row = _reservation_row(reservation)
        with self._change(
            "reservation.create", reservation.id, actor, reservation.created_at, row[1:]
        ) as transaction:
            _require_tenant(transaction, reservation.tenant)
            _require_money(transaction, reservation)
            if fits is not None:
                fits([_reservation(row) for row in _all(transaction, "reservation", RESERVATION)])
            transaction.insert_new("reservation", RESERVATION, [row])

    def end_reservation(self, reservation_id: str, ends_at: float, actor: str, now: float) -> None:
        with self._change("reservation.end", reservation_id, actor, now, ends_at) as transaction:
            statement = "UPDATE reservation SET ends_at = :ends_at WHERE id = :id"
            if not transaction.run(statement, ends_at=ends_at, id=reservation_id):
                raise UnknownAccount(f"there is no reservation {reservation_id}")

    def note(self, action: str, subject: str, detail: str, actor: str, now: float) -> None:
        with self._change(action, subject, actor, now, detail):
            pass

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _change(
        self, action: str, subject: str, actor: str, now: float, detail: object
    ) -> Iterator[Transaction]:
        with guarded(
            self._database, self._database.transaction(), AccountsUnavailable
        ) as transaction:
            # first, so that changes wait for one another and the chain has one end
            transaction.run("UPDATE revision SET value = value + 1")
            yield transaction
            last = transaction.rows("SELECT place, hash FROM audit ORDER BY place DESC LIMIT 1")
            place, previous = last[0] if last else (0, FIRST)
            text = msgspec.json.encode(detail).decode()
            entry = chained(
                place + 1, int(now * MICRO), actor, action, subject, text, previous
            )  # fmt: skip
            transaction.insert_new("audit", AUDIT, [tuple(getattr(entry, n) for n in AUDIT)])

    def _snapshot(self) -> AbstractContextManager[Transaction]:
        return guarded(self._database, self._database.snapshot(), AccountsUnavailable)


def _revision(transaction: Transaction) -> int:
    ((value,),) = transaction.rows("SELECT value FROM revision")
    return int(value)


def _all(transaction: Transaction, table: str, columns: Sequence[str]) -> list[Row]:
    return transaction.rows(f"SELECT {', '.join(columns)} FROM {table} ORDER BY {columns[0]}")


def _require_tenant(transaction: Transaction, tenant: str, kind: str | None = None) -> None:
    rows = transaction.rows("SELECT kind FROM tenant WHERE id = :id", id=tenant)
    if not rows or kind not in (None, rows[0][0]):
        raise UnknownAccount(f"there is no {kind or 'tenant'} {tenant}")


def _require_money(transaction: Transaction, reservation: Reservation) -> None:
    """Raises CannotPay; changes wait for one another, so none is promised the same money."""
    tenant = reservation.tenant
    (payment,) = transaction.rows("SELECT payment FROM tenant WHERE id = :id", id=tenant)
    if payment[0] != "prepaid":
        return
    balance = transaction.rows(statements.BALANCE, account=tenant_account(tenant))
    unpaid = transaction.rows(statements.FIRST_PERIODS_UNPAID, tenant=tenant)
    left = sum(int(amount) for (amount,) in balance) - sum(int(price) for (price,) in unpaid)
    if left < reservation.price:
        raise CannotPay(left)


def _shown(key: ApiKey) -> dict[str, object]:
    """What the audit log says of a key: nothing that helps to find its text."""
    return {
        "tenant": key.tenant,
        "name": key.name,
        "last_four": key.last_four,
        "expires_at": key.expires_at,
        "revoked_at": key.revoked_at,
        "earlier_until": [each.until for each in key.earlier],
    }


def _key_row(key: ApiKey) -> Row:
    scope = key.scope or Scope()
    sets = (scope.models, scope.routes, scope.networks)
    earlier = [[each.digest.hex(), each.until, each.last_four] for each in key.earlier]
    return (
        *(getattr(key, name) for name in PLAIN),
        *(msgspec.json.encode(sorted(names)).decode() for names in sets),
        msgspec.json.encode(earlier).decode(),
    )


def _key(row: Row) -> ApiKey:
    *plain, models, routes, networks, texts = row
    sets = [frozenset(_names.decode(text)) for text in (models, routes, networks)]
    values = dict(zip(PLAIN, plain, strict=True))
    values["digest"] = bytes(values["digest"])  # psycopg gives a memoryview
    earlier = tuple(
        EarlierText(bytes.fromhex(digest), until, last_four)
        for digest, until, last_four in _texts.decode(texts)
    )
    return ApiKey(**values, earlier=earlier, scope=Scope(*sets) if any(sets) else None)


def _price(row: Row) -> Price:
    return Price(**dict(zip(PRICE, row, strict=True)))


def _limit(row: Row) -> Limit:
    values = dict(zip(LIMIT, row, strict=True))
    return Limit(**{**values, "kind": LimitKind(values["kind"])})


def _reservation_row(reservation: Reservation) -> Row:
    values = {name: getattr(reservation, name) for name in RESERVATION}
    values["period"] = str(reservation.period)
    values["datacenters"] = msgspec.json.encode(sorted(reservation.datacenters)).decode()
    values["spill"] = int(reservation.spill)
    return tuple(values.values())


def _reservation(row: Row) -> Reservation:
    values = dict(zip(RESERVATION, row, strict=True))
    names = msgspec.json.decode(values["datacenters"], type=list[str])
    period, spill = Period(values["period"]), bool(values["spill"])
    return Reservation(
        **{**values, "datacenters": frozenset(names), "period": period, "spill": spill}
    )
