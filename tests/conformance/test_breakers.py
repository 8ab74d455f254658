"""Shared breakers: what every store must do."""

from __future__ import annotations

import asyncio
import time

import pytest

from prime_inference.ports.coordination import (
    BEAT_S,
    BreakerRecord,
    BreakerState,
    Cause,
    Coordination,
    Push,
    Verdict,
)
from tests.conformance.asks import half_open, probe, result, trip


async def test_a_trip_opens_a_breaker_nobody_knew_of(store: Coordination) -> None:
    record = await store.trip(trip(epoch=77, cause=Cause.RATE, open_s=30))
    assert record.state is BreakerState.OPEN
    assert record.cause is Cause.RATE
    assert record.trips == 1
    assert record.epoch > 0
    assert record.remaining_s == pytest.approx(30, abs=5)


@pytest.mark.parametrize("cause", Cause)
async def test_what_opened_a_breaker_is_told_to_whoever_asks(
    store: Coordination, cause: Cause
) -> None:
    opened = await store.trip(trip(cause=cause))
    snapshot = (await store.breakers(0)).news
    assert snapshot is not None
    assert [(one.epoch, one.cause) for one in snapshot.records] == [(opened.epoch, cause)]


async def test_of_two_trips_of_one_epoch_the_first_counts(store: Coordination) -> None:
    first = await store.trip(trip(cause=Cause.RATE))
    second = await store.trip(trip(cause=Cause.CONSECUTIVE))
    assert (second.epoch, second.cause) == (first.epoch, Cause.RATE)


async def test_evidence_from_before_the_last_closing_does_not_open(store: Coordination) -> None:
    epoch = await half_open(store)
    closed = await store.conclude(result("a", epoch))
    assert closed.state is BreakerState.CLOSED
    assert (await store.trip(trip(epoch=epoch))).state is BreakerState.CLOSED
    assert (await store.trip(trip(epoch=closed.epoch))).state is BreakerState.OPEN


async def test_no_ticket_before_the_open_time_is_over(store: Coordination) -> None:
    await store.trip(trip(open_s=0.1))
    assert not (await store.probe(probe("a"))).granted
    await asyncio.sleep(0.15)
    grant = await store.probe(probe("a"))
    assert grant.granted
    assert grant.record.state is BreakerState.HALF_OPEN


async def test_a_closed_breaker_gives_no_ticket_and_stays_closed(store: Coordination) -> None:
    grant = await store.probe(probe("a"))
    assert not grant.granted
    assert grant.record.state is BreakerState.CLOSED
    assert (await store.trip(trip())).state is BreakerState.OPEN


async def test_tickets_are_limited_across_replicas(store: Coordination) -> None:
    await half_open(store, "a")
    assert (await store.probe(probe("b"))).granted
    assert not (await store.probe(probe("c"))).granted


async def test_asking_twice_for_a_ticket_gives_one(store: Coordination) -> None:
    await half_open(store, "a", tickets=2)
    assert (await store.probe(probe("a"))).granted
    assert (await store.probe(probe("b"))).granted


async def test_the_ticket_of_an_owner_that_died_ends(store: Coordination) -> None:
    await store.trip(trip(open_s=0))
    assert (await store.probe(probe("dead", ttl_s=0.05, tickets=1))).granted
    assert not (await store.probe(probe("b", tickets=1))).granted
    await asyncio.sleep(0.1)
    assert (await store.probe(probe("b", tickets=1))).granted


async def test_enough_answers_close(store: Coordination) -> None:
    epoch = await half_open(store, "a")
    await store.probe(probe("b"))
    first = await store.conclude(result("a", epoch, answers=2))
    second = await store.conclude(result("b", epoch, answers=2))
    assert first.state is BreakerState.HALF_OPEN
    assert second.state is BreakerState.CLOSED
    assert second.epoch > epoch


async def test_one_ticket_counts_once(store: Coordination) -> None:
    epoch = await half_open(store, "a")
    await store.conclude(result("a", epoch, answers=2))
    again = await store.conclude(result("a", epoch, answers=2))
    assert again.state is BreakerState.HALF_OPEN


async def test_a_failed_probe_opens_for_twice_as_long(store: Coordination) -> None:
    epoch = await half_open(store)
    record = await store.conclude(result("a", epoch, Verdict.FAILED, open_s=10))
    assert record.state is BreakerState.OPEN
    assert record.trips == 2
    assert record.remaining_s == pytest.approx(20, abs=2)


async def test_the_open_time_has_a_cap(store: Coordination) -> None:
    epoch = await half_open(store)
    record = await store.conclude(result("a", epoch, Verdict.FAILED, open_s=40, cap_s=50))
    assert record.remaining_s == pytest.approx(50, abs=5)


async def test_a_lost_probe_says_nothing_and_frees_its_ticket(store: Coordination) -> None:
    epoch = await half_open(store, "a", tickets=1)
    record = await store.conclude(result("a", epoch, Verdict.LOST))
    assert record.state is BreakerState.HALF_OPEN
    assert (await store.probe(probe("b", tickets=1))).granted


async def test_nobody_but_the_owner_of_a_live_ticket_is_listened_to(store: Coordination) -> None:
    epoch = await half_open(store, "a")
    stranger = await store.conclude(result("stranger", epoch))
    old_epoch = await store.conclude(result("a", epoch - 1))
    assert stranger.state is old_epoch.state is BreakerState.HALF_OPEN


async def test_the_owner_of_a_ticket_that_ended_is_not_listened_to(store: Coordination) -> None:
    await store.trip(trip(open_s=0))
    grant = await store.probe(probe("a", ttl_s=0.05))
    await asyncio.sleep(0.1)
    late = await store.conclude(result("a", grant.record.epoch))
    assert late.state is BreakerState.HALF_OPEN


async def test_trips_are_counted_until_the_breaker_was_closed_for_long(
    store: Coordination,
) -> None:
    epoch = await half_open(store)
    closed = await store.conclude(result("a", epoch))
    again = await store.trip(trip(epoch=closed.epoch, open_s=0))
    assert again.trips == 2
    grant = await store.probe(probe("b"))
    closed = await store.conclude(result("b", grant.record.epoch))
    await asyncio.sleep(0.05)
    assert (await store.trip(trip(epoch=closed.epoch, forget_s=0.01))).trips == 1


async def test_reading_tells_every_record_and_then_only_of_changes(store: Coordination) -> None:
    assert (await store.breakers(0)).news is None
    one = await store.trip(trip("one"))
    two = await store.trip(trip("two"))
    snapshot = (await store.breakers(0)).news
    assert snapshot is not None
    assert {r.deployment: r.epoch for r in snapshot.records} == {"one": one.epoch, "two": two.epoch}
    assert (await store.breakers(snapshot.version)).news is None
    await store.trip(trip("three"))
    assert (await store.breakers(snapshot.version)).news is not None


async def test_a_store_that_knows_nothing_says_so_to_who_knew_more(store: Coordination) -> None:
    snapshot = (await store.breakers(12345)).news
    assert snapshot is not None
    assert (snapshot.version, snapshot.records) == (0, ())
    assert (await store.breakers(-1)).news == snapshot


async def test_epochs_grow_across_deployments_and_changes(store: Coordination) -> None:
    epochs = [(await store.trip(trip(str(name)))).epoch for name in range(20)]
    assert epochs == sorted(set(epochs))


async def test_every_change_is_pushed(store: Coordination) -> None:
    heard: asyncio.Queue[Push] = asyncio.Queue()
    watching = asyncio.create_task(store.watch(heard.put_nowait))
    await _subscribed(store, heard)
    await store.trip(trip("watched", open_s=0))
    grant = await store.probe(probe("a", "watched"))
    await store.conclude(result("a", grant.record.epoch, deployment="watched"))
    for state in (BreakerState.OPEN, BreakerState.HALF_OPEN, BreakerState.CLOSED):
        assert (await _next(heard, "watched")).state is state
    watching.cancel()


async def test_a_cancelled_watch_hears_no_more(store: Coordination) -> None:
    heard: asyncio.Queue[Push] = asyncio.Queue()
    watching = asyncio.create_task(store.watch(heard.put_nowait))
    await _subscribed(store, heard)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    while not heard.empty():
        heard.get_nowait()
    await store.trip(trip("after"))
    await store.breakers(0)
    assert heard.empty()


async def test_who_reads_hears_the_beat_that_he_is_told_of(store: Coordination) -> None:
    heard: asyncio.Queue[Push] = asyncio.Queue()
    watching = asyncio.create_task(store.watch(heard.put_nowait))
    await _subscribed(store, heard)
    beat = (await store.breakers(0)).beat
    async with asyncio.timeout(5):
        while await heard.get() != beat:
            pass
    watching.cancel()


async def test_readers_together_cause_one_beat_a_second(store: Coordination) -> None:
    began = time.monotonic()
    beats = {(await store.breakers(0)).beat.number for _ in range(50)}
    assert len(beats) <= 1 + (time.monotonic() - began) / BEAT_S


async def _subscribed(store: Coordination, heard: asyncio.Queue[Push]) -> None:
    """Trip one breaker after the other until the watch hears of it."""
    for number in range(500):
        await store.trip(trip(f"warm-up-{number}"))
        await asyncio.sleep(0.01)
        if not heard.empty():
            return
    raise AssertionError("nothing is heard")


async def _next(heard: asyncio.Queue[Push], deployment: str) -> BreakerRecord:
    async with asyncio.timeout(5):
        while True:
            push = await heard.get()
            if isinstance(push, BreakerRecord) and push.deployment == deployment:
                return push
