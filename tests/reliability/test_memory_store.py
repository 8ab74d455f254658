"""The store in memory, with a clock in the test's hand."""

from __future__ import annotations

import time

from prime_inference.adapters.memory.block_leases import BlockPool
from prime_inference.adapters.memory.breaker_table import BreakerTable
from prime_inference.adapters.memory.coordination import SCOPES_BETWEEN_SWEEPS, MemoryStore
from prime_inference.adapters.memory.request_leases import RequestScope
from prime_inference.ports.clock import steady_clock
from prime_inference.ports.coordination import FORGET_CLOSED_S, Limit, Push
from tests.conformance.asks import block, probe, request, result, trip


def test_a_block_does_not_live_longer_when_the_clock_steps_back() -> None:
    pool = BlockPool(now=5000, learning_s=0)
    pool.lease(block("a", 8, ttl_s=10), now=5000)
    assert pool.lease(block("b", 8, ttl_s=10), now=1400).granted == 0
    pool.lease(block("b", 8, ttl_s=10), now=1409.5)  # the store is heard, and the other is not
    assert pool.lease(block("b", 8, ttl_s=10), now=1411).granted == 8


def test_learning_does_not_last_longer_when_the_clock_steps_back() -> None:
    pool = BlockPool(now=5000, learning_s=10)
    assert pool.lease(block("a", 8), now=5000).learning
    assert pool.lease(block("a", 8), now=1400).learning
    assert not pool.lease(block("a", 8), now=1411).learning


def test_a_breaker_does_not_stay_open_longer_when_the_clock_steps_back() -> None:
    table = BreakerTable(publish=lambda record: None)
    table.trip(trip(open_s=10), now=5000)
    assert not table.probe(probe("a"), now=1400).granted
    assert table.probe(probe("a", ttl_s=10, tickets=1), now=1411).granted
    assert not table.probe(probe("b", tickets=1), now=100).granted
    assert table.probe(probe("b", tickets=1), now=111).granted


def test_a_request_lease_does_not_live_longer_when_the_clock_steps_back() -> None:
    scope = RequestScope(now=5000)
    one = Limit("l", 1)
    scope.acquire(request("r1", one, ttl_s=10), now=5000)
    assert not scope.acquire(request("r2", one), now=1400).granted
    assert scope.acquire(request("r2", one), now=1411).granted


def test_breakers_that_were_closed_for_long_are_forgotten() -> None:
    told: list[Push] = []
    table = BreakerTable(told.append)
    table.trip(trip("old", open_s=0), now=100)
    epoch = table.probe(probe("a", "old"), now=100).record.epoch
    table.conclude(result("a", epoch, deployment="old"), now=100)
    table.trip(trip("open"), now=100)
    table.trip(trip("new"), now=101 + FORGET_CLOSED_S)
    snapshot = table.read(-1, now=101 + FORGET_CLOSED_S).news
    assert snapshot is not None
    assert {record.deployment for record in snapshot.records} == {"open", "new"}


def test_scopes_without_a_lease_are_dropped() -> None:
    store = MemoryStore()
    store.scope("kept", 0).acquire(request("r", ttl_s=1e9), 0)
    for number in range(3 * SCOPES_BETWEEN_SWEEPS):
        store.scope(str(number), 0)
    assert len(store._scopes) <= SCOPES_BETWEEN_SWEEPS + 2
    assert not store.scope("kept", 0).empty(0)


def test_the_steady_clock_is_steady() -> None:
    clock = steady_clock()
    first, second = clock(), clock()
    assert 0 <= second - first < 60
    assert clock() >= time.monotonic() - 1  # it counts what monotonic counts, and suspended time
