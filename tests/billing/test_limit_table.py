"""Limits against a model that is told everything and forgets nothing."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prime_inference.billing.limit_table import LimitTable
from prime_inference.domain.limits import DAY_S, LimitKind
from prime_inference.ports.limits import Demand, HoldAsk, HoldGrant

KINDS = {"budget": LimitKind.BUDGET_DAILY, "places": LimitKind.CONCURRENCY}
WINDOWS = st.sampled_from([1, 2, 1000])  # the days of a clock that is right, and of others


class Limits(RuleBasedStateMachine):
    """One budget and one concurrency limit; requests that settle, die, or repeat themselves.

    Clocks differ: each request is of the window that its replica believes in.
    """

    @initialize(most=st.integers(0, 50), places=st.integers(0, 4))
    def begin(self, most: int, places: int) -> None:
        self.most = {"budget": most, "places": places}
        self.table = LimitTable()
        self.now = 0.0
        self.live: dict[str, tuple[HoldAsk, float]] = {}
        self.over: dict[str, HoldAsk] = {}  # settled
        self.spent: Counter[int] = Counter()  # by window
        self.number = 0

    def ask(self, amount: int, window: int) -> HoldAsk:
        self.number += 1
        demands = tuple(
            Demand(name, kind, self.most[name], amount, window)
            if name == "budget"
            else Demand(name, kind, self.most[name], 1)
            for name, kind in KINDS.items()
        )
        return HoldAsk(f"r{self.number}", demands, ttl_s=10.0)

    @property
    def held(self) -> list[HoldAsk]:
        return [ask for ask, end in self.live.values() if end > self.now]

    def held_in(self, window: int) -> int:
        demands = [each.demands[0] for each in self.held]
        return sum(each.amount for each in demands if each.window == window)

    @rule(amount=st.integers(0, 20), window=WINDOWS)
    def reserve(self, amount: int, window: int) -> None:
        ask = self.ask(amount, window)
        money = self.spent[window] + self.held_in(window) + amount
        fits = money <= self.most["budget"] and len(self.held) < self.most["places"]
        assert self.table.reserve(ask, self.now).granted is fits
        if fits:
            self.live[ask.member] = ask, self.now + 10.0

    @precondition(lambda self: self.live)
    @rule(data=st.data(), times=st.integers(1, 3))
    def settle(self, data: st.DataObject, times: int) -> None:
        member = data.draw(st.sampled_from(sorted(self.live)))
        ask, _ = self.live.pop(member)
        used = data.draw(st.integers(0, ask.demands[0].amount))
        for _ in range(times):
            self.table.settle(ask, [used, 1], self.now)
        self.spent[ask.demands[0].window] += used
        self.over[member] = ask

    @precondition(lambda self: self.over or self.held)
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        known = [*self.over.values(), *self.held]
        ask = data.draw(st.sampled_from(known))
        assert self.table.reserve(ask, self.now).granted

    @rule(seconds=st.floats(0.5, 12))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        member = data.draw(st.sampled_from(sorted(self.live)))
        ask, _ = self.live[member]
        self.table.renew(ask, self.now)
        self.live[member] = ask, self.now + 10.0

    @invariant()
    def the_table_knows_what_is_spent_and_left(self) -> None:
        if not hasattr(self, "table"):
            return
        for window in (1, 2, 1000):
            probe: Any = HoldAsk("nobody", self.ask(10**9, window).demands, 1.0)
            budget, places = self.table.reserve(probe, self.now).states
            held = self.held_in(window)
            assert budget.spent == self.spent[window]
            assert budget.left == max(0, self.most["budget"] - budget.spent - held)
            assert places.left == max(0, self.most["places"] - len(self.held))
            assert budget.spent + held <= self.most["budget"] or self.late

    @property
    def late(self) -> bool:
        """A hold that ended and was settled late may have had its money given to another."""
        return self.now >= 10.0


Limits.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
test_limits_agree_with_the_model = Limits.TestCase


def test_windows_that_nobody_asks_for_are_forgotten_and_nothing_that_runs_is():
    table = LimitTable()

    def demand(window: int, amount: int = 0) -> HoldAsk:
        kind = LimitKind.BUDGET_DAILY
        return HoldAsk(f"{window}-{amount}", (Demand("b", kind, 10, amount, window),), 10.0)

    for day in range(100):
        table.reserve(demand(day, 5), day * DAY_S)
        table.settle(demand(day, 5), [5], day * DAY_S)
    assert len(table._counters["b"]) < 5
    assert table.reserve(demand(98, 6), 99 * DAY_S).refused == 0  # what is late, is counted


SLOTS, LONGEST = 4, 200


@given(
    st.integers(1, 20),
    st.lists(st.tuples(st.floats(0, 60), st.booleans(), st.integers(0, LONGEST)), max_size=200),
)
@settings(max_examples=100, deadline=None)
def test_what_is_drawn_afterwards_exceeds_a_reservation_s_rate_by_what_its_slots_write_at_most(
    per_second: int, steps: list[tuple[float, bool, int]]
):
    table, most = LimitTable(), per_second * 60
    running: list[HoldAsk] = []
    now, drawn = 0.0, 0
    for number, (passed, ends, output) in enumerate(steps):
        now += passed
        if ends and running:
            table.settle(running.pop(0), [output], now)
            drawn += output
        elif len(running) < SLOTS:
            demand = Demand("r", LimitKind.RESERVED_OUTPUT, most, 0)
            ask = HoldAsk(f"m{number}", (demand,), ttl_s=10.0)
            grant = table.reserve(ask, now)
            if grant.granted:
                running.append(ask)
                assert drawn <= most + now * per_second + 1e-6
            else:
                assert 0 < grant.states[0].wait_s <= SLOTS * LONGEST / per_second
    assert drawn <= most + now * per_second + SLOTS * LONGEST


@pytest.mark.parametrize(("drawn", "waits"), [(0, 0), (59, 0), (60, 0), (61, 1), (180, 120)])
def test_a_reservation_s_bucket_lets_through_what_finds_it_without_debt_to_the_token(
    drawn: int, waits: int
):
    table = LimitTable()

    def asked(number: int, now: float) -> HoldGrant:
        ask = HoldAsk(f"m{number}", (Demand("r", LimitKind.RESERVED_OUTPUT, 60, 0),), ttl_s=10.0)
        grant = table.reserve(ask, now)
        if number == 1:
            table.settle(ask, [drawn], now)
        return grant

    assert asked(1, 1000.0).granted  # it begins full
    after = asked(2, 1000.0)
    assert after.granted is (waits == 0)
    assert after.states[0].wait_s == pytest.approx(waits)
    assert after.states[0].left == max(0, 60 - drawn)
    if waits:
        assert not asked(3, 1000.0 + waits - 0.01).granted
    assert asked(4, 1000.0 + waits).granted
    assert asked(5, 1_000_000.0).states[0].left == 60  # and never holds more than a minute's worth
