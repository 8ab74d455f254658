"""The conformance suite of the ledger: SQLite and Postgres alike."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from prime_inference.adapters.sql import statements
from prime_inference.adapters.sql.database import Database
from prime_inference.adapters.sql.ledger import SqlLedger
from prime_inference.adapters.sql.migrate import migrate
from prime_inference.billing.rating import usage_event
from prime_inference.compose_billing import ledger_spent
from prime_inference.domain.limits import Limit, LimitKind, window_start
from prime_inference.domain.usage import Usage
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.ledger import (
    CASH,
    REVENUE,
    Applied,
    EventsRefused,
    Transfer,
    TransferConflict,
    TransferRefused,
    UsageFilter,
    tenant_account,
)
from tests.at_once import at_once

from .conftest import OpenDatabase
from .samples import generation, price

DAY_S = 86_400
START = 1_800_000_000.0
DAY = int(START // DAY_S)

runs = itertools.count()


def event(number: int = 1, tenant: str = "team-a", **fields: Any) -> UsageEvent:
    return usage_event(generation(id=f"g{number}", tenant=tenant, **fields), price())


def credit(amount: int, reference: str = "pay1", tenant: str = "team-a") -> Transfer:
    return Transfer(tenant, reference, "credit", CASH, tenant_account(tenant), amount, 1)


def test_an_event_is_a_transfer_and_moves_both_balances(ledger: SqlLedger):
    assert ledger.apply("r1", [event()], 5) == Applied(1, 0)
    cost = event().cost
    assert cost > 0
    assert ledger.balance(tenant_account("team-a")) == -cost
    assert ledger.balance(REVENUE) == cost
    (transfer,) = ledger.transfers("team-a", 10)
    assert (transfer.reference, transfer.kind, transfer.amount) == ("g1", "usage", cost)
    assert ledger.event("team-a", "g1") == event()
    assert ledger.event("team-b", "g1") is None
    assert ledger.verify().sound


def test_the_same_event_again_changes_nothing(ledger: SqlLedger):
    ledger.apply("r1", [event()], 5)
    assert ledger.apply("r2", [event(), event(2), event()], 6) == Applied(1, 2)
    assert ledger.balance(REVENUE) == 2 * event().cost
    assert ledger.usage((), UsageFilter())[0].requests == 2
    assert ledger.verify().sound


def test_the_first_event_of_an_identity_stands(ledger: SqlLedger):
    ledger.apply("r1", [event()], 5)
    ledger.apply("r1", [event(usage=Usage(1, 999))], 6)
    assert ledger.event("team-a", "g1") == event()


@pytest.mark.parametrize(
    ("kind", "days"),
    [
        (LimitKind.BUDGET_DAILY, 1),
        (LimitKind.BUDGET_WEEKLY, 7),
        (LimitKind.BUDGET_MONTHLY, 31),
        (LimitKind.BUDGET_TOTAL, 10**4),
    ],
)
async def test_what_the_ledger_has_for_a_budget_is_of_its_window_only(
    ledger: SqlLedger, kind: LimitKind, days: int
):
    """Events of a gateway whose clock is ahead are another window's."""
    first = window_start(kind, START)
    moments = [START, (first + days - 0.5) * DAY_S, (first + days + 0.5) * DAY_S]
    events = [event(number, started_at=moment) for number, moment in enumerate(moments)]
    ledger.apply("r1", events, 5)
    spent = await ledger_spent(ledger)(Limit("b", kind, 1), first)
    assert spent == sum(each.cost for each in events[: 3 if kind.endswith("total") else 2])


def test_tenants_do_not_swallow_one_anothers_events(ledger: SqlLedger):
    assert ledger.apply("r1", [event(), event(tenant="team-b")], 5).fresh == 2
    assert ledger.balance(tenant_account("team-b")) == -event().cost


def test_an_event_of_no_cost_is_usage_without_a_transfer(ledger: SqlLedger):
    ledger.apply("r1", [event(outcome="failed")], 5)
    assert ledger.transfers("team-a", 10) == []
    assert ledger.usage((), UsageFilter(tenant="team-a"))[0].prompt_tokens == 100
    assert ledger.verify().sound


def test_a_repeated_event_stays_in_the_day_of_the_first(ledger: SqlLedger):
    midnight = float((DAY + 1) * DAY_S)
    ledger.apply("r1", [event(started_at=midnight - 1)], 5)
    ledger.apply("r1", [event(started_at=midnight + 1)], 6)
    assert [row.group for row in ledger.usage(["day"], UsageFilter())] == [(DAY,)]


def test_a_payment_is_credited_once(ledger: SqlLedger):
    assert ledger.transfer(credit(1000)) is True
    assert ledger.transfer(credit(1000)) is False
    assert ledger.balance(tenant_account("team-a")) == 1000
    assert ledger.balance(CASH) == -1000
    with pytest.raises(TransferConflict):
        ledger.transfer(credit(999))
    assert ledger.balance(tenant_account("team-a")) == 1000
    assert ledger.verify().sound


def test_an_adjustment_is_a_transfer_of_its_own(ledger: SqlLedger):
    ledger.apply("r1", [event()], 5)
    ledger.transfer(
        Transfer(
            "team-a", "adj1", "adjustment", "adjustments", "tenant:team-a", 7, 9, "g1", "goodwill"
        )
    )
    assert ledger.balance(tenant_account("team-a")) == 7 - event().cost
    assert ledger.event("team-a", "g1") == event()
    assert [each.kind for each in ledger.transfers("team-a", 10)] == ["usage", "adjustment"]
    assert ledger.verify().sound


@pytest.mark.parametrize(("debit", "amount"), [("other", -1), ("credit", 1)])
def test_a_transfer_moves_an_amount_to_another_account(ledger: SqlLedger, debit: str, amount: int):
    transfer = Transfer("t", "r", "credit", debit, "credit", amount, 0)
    with pytest.raises(ValueError, match="moves"):
        ledger.transfer(transfer)


def test_usage_is_summed_by_team_key_model_day_and_pool(ledger: SqlLedger):
    ledger.apply(
        "r1",
        [
            event(1),
            event(2, key_id="key2", started_at=START + DAY_S),
            event(3, model="acme/other", tenant="team-b"),
        ],
        5,
    )
    by_day = ledger.usage(["tenant", "day"], UsageFilter())
    assert [(row.group, row.requests) for row in by_day] == [
        (("team-a", DAY), 1),
        (("team-a", DAY + 1), 1),
        (("team-b", DAY), 1),
    ]
    (second,) = ledger.usage(["key_id"], UsageFilter(tenant="team-a", key_id="key2"))
    assert (second.group, second.cost) == (("key2",), event().cost)
    assert ledger.usage(["model"], UsageFilter(first_day=DAY + 1))[0].group == ("acme/echo-1",)
    assert ledger.usage((), UsageFilter(last_day=DAY - 1))[0].requests == 0
    with pytest.raises(ValueError, match="grouped"):
        ledger.usage(["cost; --"], UsageFilter())  # type: ignore[list-item]


def test_events_and_transfers_are_listed_newest_first(ledger: SqlLedger):
    ledger.apply("r1", [event(n, started_at=START + n) for n in range(1, 6)], 5)
    assert [each.generation for each in ledger.events("team-a", 2)] == ["g5", "g4"]
    assert [each.generation for each in ledger.events("team-a", 2, 4)] == ["g1"]
    assert [each.reference for each in ledger.transfers("team-a", 2, 1)] == ["g4", "g3"]
    assert (ledger.transfer_count("team-a"), ledger.transfer_count("team-b")) == (5, 0)


@pytest.mark.parametrize(
    ("damage", "meaning"),
    [
        ("INSERT INTO balance VALUES ('tenant:x', 5)", "balance"),
        ("UPDATE balance SET amount = amount + 1 WHERE account = 'revenue'", "balance"),
        ("UPDATE usage_day SET cost = cost + 1", "day"),
        ("DELETE FROM usage_day", "day"),
        (
            "INSERT INTO transfer VALUES ('team-a', 'g9', 'usage', 'tenant:team-a', 'revenue',"
            " 1, 1, '', '', (SELECT max(id) FROM batch))",
            "without its event",
        ),
        (
            "INSERT INTO usage_event SELECT tenant, 'g9', kind, key_id, model, deployment, pool,"
            " route, outcome, streamed, price_version, prompt_tokens, cached_tokens,"
            " completion_tokens, reasoning_tokens, cost, at, first_token_us, duration_us, batch,"
            " estimated FROM usage_event",
            "transfer is missing",
        ),
    ],
)
def test_verify_finds_what_does_not_add_up(database: Database, damage: str, meaning: str):
    ledger = SqlLedger(database)
    ledger.apply("r1", [event()], 5)
    with database.transaction() as transaction:
        transaction.run(damage)
    found = ledger.verify()
    assert not found.sound
    assert any(meaning in problem for problem in found.problems)


def test_a_batch_that_cannot_be_written_whole_is_not_written_at_all(database: Database):
    ledger = SqlLedger(database)
    with pytest.raises(EventsRefused):
        ledger.apply("r1", [event(1), structs.replace(event(2), at=2**70)], 5)
    assert ledger.verify().events == 0
    assert ledger.apply("r1", [event(1)], 5).fresh == 1  # the connection is whole again
    assert ledger.verify().sound


MOST = 2**63 - 1


@pytest.mark.parametrize(
    ("full", "passes"),
    [
        ("UPDATE balance SET amount = :most - 1 WHERE account = 'revenue'", {"outcome": "failed"}),
        ("UPDATE usage_day SET completion_tokens = :most - 1", {"tenant": "team-b"}),
    ],
)
def test_an_event_that_would_take_a_sum_out_of_64_bits_is_refused_and_others_are_not(
    database: Database, full: str, passes: dict[str, Any]
):
    ledger = SqlLedger(database)
    ledger.apply("r1", [event()], 5)
    with database.transaction() as transaction:
        transaction.run(full, most=MOST)
    with pytest.raises(EventsRefused):
        ledger.apply("r1", [event(2)], 5)
    assert ledger.apply("r1", [event(2, **passes)], 5) == Applied(1, 0)
    assert ledger.event("team-a", "g2") == (None if "tenant" in passes else event(2, **passes))


def test_a_transfer_that_would_take_a_balance_out_of_64_bits_is_refused(database: Database):
    ledger = SqlLedger(database)
    ledger.transfer(credit(1000))
    with database.transaction() as transaction:
        transaction.run("UPDATE balance SET amount = -:most WHERE account = 'cash'", most=MOST)
    with pytest.raises(TransferRefused, match="64 bits"):
        ledger.transfer(credit(2, "pay2"))
    assert ledger.balance(tenant_account("team-a")) == 1000
    assert ledger.transfer(credit(1, "pay3")) is True  # to the last nanodollar
    assert ledger.balance(CASH) == -MOST - 1


def test_the_proof_holds_where_all_that_moved_leaves_64_bits(database: Database):
    ledger = SqlLedger(database)
    own, other = tenant_account("team-a"), "adjustments"
    for number in range(6):  # there and back
        accounts = (other, own) if number % 2 else (own, other)
        with database.transaction() as transaction:
            ((batch,),) = transaction.rows(statements.NEW_BATCH, source="r1", now=1)
            rows = [
                ("team-a", f"{number}-{n}", "adjustment", *accounts, 2**52, 1, "", "", batch)
                for n in range(1000)
            ]
            transaction.insert_new("transfer", (*statements.TRANSFER_COLUMNS, "batch"), rows)
            transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)
    assert ledger.verify().sound
    with database.transaction() as transaction:
        transaction.run("UPDATE balance SET amount = amount + 2 * 4294967296")
    assert len(ledger.verify().problems) == 3


def test_the_proof_holds_at_both_ends_of_64_bits(database: Database):
    ledger = SqlLedger(database)
    with database.transaction() as transaction:
        ((batch,),) = transaction.rows(statements.NEW_BATCH, source="r1", now=1)
        columns = (*statements.TRANSFER_COLUMNS, "batch")
        row = ("team-a", "all", "credit", CASH, tenant_account("team-a"))
        transaction.insert_new("transfer", columns, [(*row, MOST, 1, "", "", batch)])
        transaction.run(statements.BALANCES_OF_TRANSFERS, batch=batch)
    ledger.transfer(credit(1, "the last", "team-b"))
    assert ledger.balance(CASH) == -MOST - 1
    assert ledger.verify().sound


def test_sums_of_usage_are_exact_beyond_64_bits(database: Database):
    ledger = SqlLedger(database)
    ledger.apply("r1", [event(1), event(2, tenant="team-b"), event(3, tenant="team-c")], 5)
    tokens = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost")
    with database.transaction() as transaction:
        transaction.run(
            f"UPDATE usage_day SET {', '.join(f'{name} = :most' for name in tokens)}", most=MOST
        )
    (total,) = ledger.usage((), UsageFilter())
    assert [getattr(total, name) for name in tokens] == [3 * MOST] * len(tokens)
    assert [row.cost for row in ledger.usage(("tenant",), UsageFilter())] == [MOST] * 3


DAMAGED = [
    *(
        f"UPDATE {table} SET {column} = {amount}"
        for table, column in (
            ("balance", "amount"), ("usage_day", "requests"), ("usage_day", "cost"),
            ("usage_day", "completion_tokens"),
        )
        for amount in (":most", "-:most - 1")
    ),
    "INSERT INTO usage_event SELECT tenant, 'x' || generation, kind, key_id, model, deployment,"
    " pool, route, outcome, streamed, price_version, :most, :most, :most, :most, :most, at,"
    " first_token_us, duration_us, batch, estimated FROM usage_event",
    "INSERT INTO transfer SELECT tenant, 'x' || reference, 'credit', debit, credit, :most, at,"
    " about, memo, batch FROM transfer",
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_what_leaves_64_bits_in_damaged_tables_is_a_problem_and_no_failure(
    database: Database, damage: str
):
    ledger = SqlLedger(database)
    ledger.apply("r1", [event(1), event(2), event(3)], 5)
    with database.transaction() as transaction:
        transaction.run(damage, most=MOST)
    found = ledger.verify()
    assert not found.sound
    added = 3 * MOST if "INTO usage_event" in damage else 0
    assert found.event_cost == 3 * event().cost + added


def test_no_batch_of_events_is_so_large_that_its_sums_leave_64_bits(ledger: SqlLedger):
    many = [structs.replace(event(n), cost=2**52, prompt_tokens=2**32) for n in range(2048)]
    with pytest.raises(EventsRefused, match="2047"):
        ledger.apply("r1", many, 5)
    assert ledger.balance(REVENUE) == 0
    assert ledger.apply("r1", many[1:], 5).fresh == 2047
    assert ledger.balance(REVENUE) == 2047 * 2**52
    with pytest.raises(EventsRefused):
        ledger.apply("r1", many[:1], 5)
    assert ledger.verify().sound


def test_shippers_at_the_same_time_apply_each_event_once(open_database: OpenDatabase):
    first = open_database()
    migrate(first)
    ledgers = [SqlLedger(first), *(SqlLedger(open_database()) for _ in range(3))]
    events = [event(n, tenant=f"team-{n % 3}") for n in range(60)]
    fresh: list[int] = []

    def ship(ledger: SqlLedger, order: list[UsageEvent]) -> None:
        for start in range(0, len(order), 10):
            fresh.append(ledger.apply("r", order[start : start + 10], 5).fresh)

    orders = [events, events[::-1], events[20:] + events[:20], events]
    at_once([partial(ship, *pair) for pair in zip(ledgers, orders, strict=True)])
    assert sum(fresh) == 60
    found = ledgers[0].verify()
    assert found.sound
    assert found.revenue == found.event_cost == sum(each.cost for each in events)


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_order_and_repetition_of_events_gives_the_same_books(
    database: Database, data: st.DataObject
):
    ledger = SqlLedger(database)
    run = next(runs)  # the examples share a database
    events = [
        event(n, tenant=f"{run}-{'ab'[n % 2]}")
        for n in range(data.draw(st.integers(1, 6)))
    ]  # fmt: skip
    before = ledger.balance(REVENUE)
    for batch in data.draw(st.lists(st.lists(st.sampled_from(events), min_size=1), max_size=6)):
        ledger.apply("r", batch, 5)
    ledger.apply("r", events, 6)
    assert ledger.balance(REVENUE) - before == sum(each.cost for each in events)
    for tenant in {each.tenant for each in events}:
        expected = sum(each.cost for each in events if each.tenant == tenant)
        assert ledger.balance(tenant_account(tenant)) == -expected
        assert ledger.usage((), UsageFilter(tenant=tenant))[0].cost == expected
    assert ledger.verify().sound
