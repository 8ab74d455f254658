"""The conformance suite of accounts: SQLite and Postgres alike."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from prime_inference.accounts.audit import first_break
from prime_inference.accounts.directory import Directory
from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.accounts import SqlAccounts
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.billing.reservation_charges import charge_of
from prime_inference.domain import keys as api_keys
from prime_inference.domain.accounts import Role, Tenant
from prime_inference.domain.errors import PermissionDenied
from prime_inference.domain.keys import Scope
from prime_inference.domain.limits import MOST_AMOUNT, Limit, LimitKind
from prime_inference.domain.reservations import Period, Reservation
from prime_inference.ports.accounts import AccountExists, CannotPay, UnknownAccount
from prime_inference.ports.ledger import CASH, Transfer, TransferKind, tenant_account
from tests.at_once import at_once
from tests.billing.samples import price

from .conftest import OpenDatabase

TEAM = Tenant("team_1", "team", "Acme", "acme", 1.0)
ANN = Tenant("user_ann", "person", "Ann", "ann", 2.0)


def with_team(accounts: SqlAccounts) -> None:
    accounts.add_tenant(TEAM, "admin")
    accounts.add_tenant(ANN, "admin")


def test_what_is_written_is_loaded_as_it_was(accounts: SqlAccounts):
    with_team(accounts)
    accounts.set_member("team_1", "user_ann", Role.MEMBER, "admin", 3.0)
    _, key = api_keys.create("user_ann", name="laptop", created_at=4.0)
    scope = Scope(frozenset({"acme/echo-1"}), frozenset({"embeddings"}), frozenset({"10.0.0.0/8"}))
    key = replace(key, expires_at=9.5, scope=scope)
    accounts.add_key(key, "admin")
    limit = Limit("lim_1", LimitKind.BUDGET_DAILY, 5, tenant="team_1")
    accounts.add_limit(limit, "admin", 5.0)
    accounts.add_price(price(), "admin", 6.0)
    found = accounts.load()
    assert list(found.tenants) == [TEAM, ANN]
    assert [(m.team, m.person, m.role) for m in found.members] == [
        ("team_1", "user_ann", Role.MEMBER)
    ]
    assert list(found.keys) == [key]
    assert list(found.limits) == [limit]
    assert list(found.prices) == [price()]


def test_every_change_moves_the_revision_and_stands_in_the_audit_log(accounts: SqlAccounts):
    assert accounts.revision() == 0
    with_team(accounts)
    accounts.set_member("team_1", "user_ann", Role.OWNER, "eve", 3.0)
    accounts.remove_member("team_1", "user_ann", "eve", 4.0)
    accounts.note("credit", "team_1", "paid", "eve", 5.0)
    assert accounts.revision() == 5
    entries = accounts.audit(10)
    assert [(entry.actor, entry.action, entry.subject) for entry in entries] == [
        ("admin", "team.create", "team_1"),
        ("admin", "person.create", "user_ann"),
        ("eve", "member.set", "team_1"),
        ("eve", "member.remove", "team_1"),
        ("eve", "credit", "team_1"),
    ]
    assert first_break(entries) is None


@pytest.mark.parametrize("change", ["actor", "detail", "gone"])
def test_an_audit_log_that_was_changed_is_noticed(accounts: SqlAccounts, change: str):
    with_team(accounts)
    accounts.note("credit", "team_1", "paid 5", "eve", 5.0)
    entries = list(accounts.audit(10))
    if change == "gone":
        del entries[1]
    else:
        entries[1] = replace(entries[1], **{change: "x"})  # type: ignore[arg-type]
    assert first_break(entries) == 2


def test_the_audit_log_holds_no_digest_and_no_key(accounts: SqlAccounts):
    with_team(accounts)
    text, key = api_keys.create("team_1", name="ci", created_at=1.0)
    accounts.add_key(key, "admin")
    said = repr(accounts.audit(10))
    assert text not in said
    assert text.split("_")[3] not in said
    assert key.digest.hex() not in said


def test_what_does_not_exist_cannot_be_changed(accounts: SqlAccounts):
    with_team(accounts)
    _, key = api_keys.create("nobody", name="", created_at=1.0)
    for change in (
        lambda: accounts.add_key(key, "admin"),
        lambda: accounts.replace_key(key, "key.revoke", "admin", 1.0),
        lambda: accounts.set_member("team_1", "team_1", Role.MEMBER, "admin", 1.0),
        lambda: accounts.set_member("user_ann", "user_ann", Role.MEMBER, "admin", 1.0),
        lambda: accounts.remove_member("team_1", "user_ann", "admin", 1.0),
        lambda: accounts.remove_limit("lim_x", "admin", 1.0),
        lambda: accounts.add_limit(
            Limit("lim_2", LimitKind.CONCURRENCY, 1, tenant="nobody"), "admin", 1.0
        ),
    ):
        with pytest.raises(UnknownAccount):
            change()
    assert accounts.revision() == 2
    assert len(accounts.audit(10)) == 2


def test_a_prepaid_tenant_may_spend_what_it_has_paid_in(database: Database, accounts: SqlAccounts):
    with_team(accounts)
    ledger = SqlLedger(database)
    own = "tenant:team_1"
    moved: list[tuple[str, TransferKind, str, str, int]] = [
        ("i1", "credit", "cash", own, 700),
        ("i2", "credit", "cash", own, 50),
        ("a1", "adjustment", own, "adjustments", 30),
        ("g1", "usage", own, "revenue", 400),  # what was used is no payment
    ]
    for reference, kind, debit, credit, amount in moved:
        ledger.transfer(Transfer("team_1", reference, kind, debit, credit, amount, 1))
    assert accounts.load().paid == {}
    assert Directory.of(accounts.load()).limits("k", "team_1", "m") == ()
    accounts.set_payment("team_1", "prepaid", "admin", 1.0)
    assert accounts.load().paid == {"team_1": 720}
    (limit,) = Directory.of(accounts.load()).limits("k", "team_1", "m")
    assert (limit.kind, limit.most, limit.tenant) == (LimitKind.WALLET, 720, "team_1")
    assert accounts.audit(10)[-1].action == "tenant.payment"
    with pytest.raises(UnknownAccount):
        accounts.set_payment("nobody", "prepaid", "admin", 1.0)


def test_what_a_tenant_has_ever_paid_in_is_exact_beyond_64_bits(
    database: Database, accounts: SqlAccounts
):
    with_team(accounts)
    own = "tenant:team_1"
    moved = [("credit", "cash", own), ("usage", own, "revenue"), ("adjustment", "adjustments", own)]
    for kind, debit, credit in moved:  # no balance leaves 64 bits on its way
        with database.transaction() as transaction:
            ((batch,),) = transaction.rows(statements.NEW_BATCH, source="r1", now=1)
            rows = [
                ("team_1", str(number), kind, debit, credit, 2**52 - 1, 1, "", "", batch)
                for number in range(1500)
            ]
            transaction.insert_new("transfer", (*statements.TRANSFER_COLUMNS, "batch"), rows)
            transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)
    accounts.set_payment("team_1", "prepaid", "admin", 1.0)
    records = accounts.load()
    assert records.paid == {"team_1": 3000 * (2**52 - 1)}
    (limit,) = Directory.of(records).limits("k", "team_1", "m")
    assert limit.most == MOST_AMOUNT


def test_names_and_versions_are_taken_once(accounts: SqlAccounts):
    with_team(accounts)
    accounts.add_price(price(), "admin", 1.0)
    with pytest.raises(AccountExists):
        accounts.add_tenant(replace(TEAM, id="team_2"), "admin")
    with pytest.raises(AccountExists):
        accounts.add_price(price(prompt=7), "admin", 2.0)
    assert list(accounts.load().prices) == [price()]


def test_changes_at_the_same_time_make_one_chain(open_database: OpenDatabase, database: Database):
    stores = [SqlAccounts(open_database()) for _ in range(3)]

    def change(store: SqlAccounts) -> None:
        for number in range(8):
            store.note("credit", "t", str(number), "admin", float(number))

    at_once([partial(change, store) for store in stores])
    entries = stores[0].audit(100)
    assert len(entries) == 24
    assert first_break(entries) is None


def test_a_team_is_billed_by_its_members_only(accounts: SqlAccounts):
    with_team(accounts)
    _, key = api_keys.create("user_ann", name="", created_at=1.0)
    accounts.add_key(key, "admin")
    for role, allowed in ((None, False), (Role.VIEWER, False), (Role.MEMBER, True)):
        if role is not None:
            accounts.set_member("team_1", "user_ann", role, "admin", 1.0)
        directory = Directory.of(accounts.load())
        if allowed:
            billed = directory.billed_to(key, "team_1")
            assert (billed.tenant, billed.key_id) == ("team_1", key.key_id)
        else:
            with pytest.raises(PermissionDenied):
                directory.billed_to(key, "team_1")
        with pytest.raises(PermissionDenied):
            directory.billed_to(key, "team_9")
    assert directory.billed_to(key, "user_ann") is key


def test_who_sells_slots_sees_all_that_are_sold(open_database: OpenDatabase, database: Database):
    """Eight at once of 40 of 60 slots: six were sold."""
    stores = [SqlAccounts(open_database()) for _ in range(3)]
    with_team(stores[0])

    def fits(others: Sequence[Reservation]) -> None:
        time.sleep(0.01)
        if others:
            raise ValueError("no room")

    made: list[int] = []

    def reserve(store: SqlAccounts, number: int) -> None:
        wanted = Reservation(f"res_{number}", "team_1", "m", 40, 10.0, 0, Period.HOUR, 9.0)
        with contextlib.suppress(ValueError):
            store.add_reservation(wanted, "eve", fits)
            made.append(number)

    at_once([partial(reserve, store, number) for number, store in enumerate(stores)])
    assert len(made) == 1
    assert [each.id for each in stores[0].load().reservations] == [f"res_{made[0]}"]


def test_no_two_reservations_of_a_prepaid_tenant_are_promised_the_same_money(
    open_database: OpenDatabase, database: Database
):
    stores = [SqlAccounts(open_database()) for _ in range(3)]
    with_team(stores[0])
    stores[0].set_payment("team_1", "prepaid", "admin", 1.0)
    ledger = SqlLedger(database)
    credit = Transfer("team_1", "c1", "credit", CASH, tenant_account("team_1"), 100, 1)
    ledger.transfer(credit)
    made: list[Reservation] = []
    refused: list[int] = []

    def reserve(store: SqlAccounts, thread: int) -> None:
        for number in range(3):
            begins = 10.0 + 10**9 * (number % 2)  # also those to come
            wanted = Reservation(
                f"res_{thread}_{number}", "team_1", "m", 1, begins, 30, Period.HOUR, 9.0
            )
            try:
                store.add_reservation(wanted, "eve")
                made.append(wanted)
            except CannotPay as error:
                refused.append(error.left)

    at_once([partial(reserve, store, number) for number, store in enumerate(stores)])
    assert (len(made), refused) == (3, [10] * 6)
    free = Reservation("res_free", "team_1", "m", 1, 10.0, 0, Period.HOUR, 9.0)
    stores[0].add_reservation(free, "eve")
    ledger.transfer(charge_of(made[0], 0))  # is in the balance, and counted no more
    dear = replace(free, id="res_dear", price=11)
    with pytest.raises(CannotPay) as caught:
        stores[0].add_reservation(dear, "eve")
    assert caught.value.left == 10
    last = replace(dear, price=10)
    stores[0].end_reservation(made[1].id, made[1].starts_at, "eve", 2.0)  # costs nothing any more
    stores[0].add_reservation(last, "eve")
    stores[0].add_reservation(replace(free, id="res_last", price=30), "eve")
    stores[0].add_reservation(replace(free, id="ann", tenant="user_ann", price=9**9), "eve")


def test_a_reservation_is_loaded_as_it_was_and_ends_when_it_is_told_to(accounts: SqlAccounts):
    with_team(accounts)
    one = Reservation(
        "res_1", "team_1", "acme/echo-1", 8, 10.5, 5_000_000_000, Period.MONTH, 9.0,
        frozenset({"us-east", "eu"}), None, spill=False, token_discount=2500,
    )  # fmt: skip
    accounts.add_reservation(one, "eve")
    assert list(accounts.load().reservations) == [one]
    accounts.end_reservation("res_1", 99.5, "eve", 20.0)
    assert list(accounts.load().reservations) == [replace(one, ends_at=99.5)]
    assert [entry.action for entry in accounts.audit(10)][2:] == [
        "reservation.create",
        "reservation.end",
    ]
    with pytest.raises(UnknownAccount):
        accounts.end_reservation("res_2", 1.0, "eve", 20.0)
    with pytest.raises(UnknownAccount):
        accounts.add_reservation(replace(one, id="res_3", tenant="nobody"), "eve")
    directory = Directory.of(accounts.load())
    assert directory.reserved("team_1", "acme/echo-1", 10.0) == ()
    assert [each.id for each in directory.reserved("team_1", "acme/echo-1", 11.0)] == ["res_1"]
    assert directory.reserved("user_ann", "acme/echo-1", 11.0) == ()
