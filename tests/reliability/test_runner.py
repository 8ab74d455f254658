"""Replicas connected by real stores: memory, and every Redis there is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from random import Random

import pytest

from prime_inference.adapters.memory.coordination import MemoryCoordination
from prime_inference.adapters.redis.coordination import RedisCoordination
from prime_inference.domain.models import Deployment
from prime_inference.ports.coordination import BreakerReading, BreakerState, Coordination
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.runner import Canary, Runner, leased, wait_for_slot
from prime_inference.reliability.settings import BreakerSettings, LeaseSettings, Settings
from prime_inference.reliability.slots import Refusal, Slot
from tests.redis_server import RedisServer, executables, running_redis
from tests.reliability.fleet import admit, deployment, fail

REDIS = executables()
FAST = Settings(breaker=BreakerSettings(open_s=0.2, open_cap_s=0.4), lease=LeaseSettings(ttl_s=1.0))

StartReplica = Callable[..., Awaitable[tuple[Guard, Runner]]]


@pytest.fixture(params=["memory", *REDIS])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer | None]:
    if request.param == "memory":
        yield None
        return
    with running_redis(tmp_path_factory.mktemp("redis"), REDIS[request.param]) as server:
        yield server


@pytest.fixture
async def start(server: RedisServer | None) -> AsyncIterator[StartReplica]:
    """Starts replicas that share a store; ends them with the test."""
    shared = MemoryCoordination(time.monotonic)
    async with AsyncExitStack() as stack:
        count = 0

        async def start(
            *fleet: Deployment,
            settings: Settings = FAST,
            canary: Canary | None = None,
            leased: bool = True,
        ) -> tuple[Guard, Runner]:
            nonlocal count
            count += 1
            store: Coordination = shared
            if server is not None:
                store = RedisCoordination(server.url, learning_s=0, call_s=1, connect_s=1)
            guard = Guard(
                f"r{count}", settings, time.monotonic, Random(count), canary=canary is not None
            )
            guard.configure(fleet)
            runner = Runner(guard, store, time.monotonic, canary)
            task = asyncio.create_task(runner.run())
            stack.push_async_callback(store.close)
            stack.push_async_callback(_cancel, task)
            if leased:
                await _until(lambda: _has_leases(guard))
            return guard, runner

        yield start


def _has_leases(guard: Guard) -> bool:
    """On a slow machine a replica may be at rest again before somebody looks: it is woken."""
    if all(status.leased for status in guard.status()):
        return True
    guard.began("m")
    return False


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _until(condition: Callable[[], bool], seconds: float = 10.0) -> float:
    """Wait for something to become true; how long that took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it does not come true"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


async def test_every_replica_reacts_to_a_trip_of_one(start: StartReplica) -> None:
    fleet = [deployment("a"), deployment("b")]
    guards = [(await start(*fleet))[0] for _ in range(3)]
    await asyncio.sleep(0.1)
    await _until(lambda: _has_leases(guards[0]))
    fail(guards[0], "a")
    await _until(lambda: all(guard.candidates("m")[0] == "b" for guard in guards))


async def test_a_breaker_closes_again_on_every_replica(start: StartReplica) -> None:
    fleet = [deployment("a"), deployment("b")]
    guards = [(await start(*fleet))[0] for _ in range(2)]
    await _until(lambda: _has_leases(guards[0]))
    fail(guards[0], "a")
    for _ in range(200):
        for guard in guards:
            if guard.candidates("m")[0] == "a" and guard.is_ejected("a"):
                with admit(guard, "a") as slot:
                    slot.record(Outcome.ANSWERED)
        await asyncio.sleep(0.02)
        if not any(guard.is_ejected("a") for guard in guards):
            return
    raise AssertionError("the breaker does not close")


async def test_a_canary_brings_a_deployment_back(start: StartReplica) -> None:
    sent: list[str] = []

    async def canary(slot: Slot) -> None:
        sent.append(slot.deployment)
        await asyncio.sleep(0.01)
        slot.first_token()
        slot.record(Outcome.ANSWERED)

    guard, _ = await start(deployment("a"), deployment("b"), canary=canary)
    fail(guard, "a")
    await _until(lambda: not guard.is_ejected("a"))
    assert sent == ["a", "a"]
    assert guard.status()[0].in_flight == 0


async def test_replicas_never_have_more_in_flight_than_there_are_slots(
    start: StartReplica,
) -> None:
    fleet = [deployment("a", slots=5)]
    guards = [(await start(*fleet))[0] for _ in range(3)]
    served = [0, 0, 0]

    async def client(number: int) -> None:
        guard, random = guards[number], Random(number)
        for _ in range(60):
            slot = await wait_for_slot(guard, "m")
            if isinstance(slot, Refusal):
                await asyncio.sleep(0.01)
                continue
            with slot:
                assert sum(each.status()[0].in_flight for each in guards) <= 5
                await asyncio.sleep(random.uniform(0, 0.02))
                slot.record(Outcome.ANSWERED)
            served[number] += 1

    async with asyncio.TaskGroup() as clients:
        for number in range(3):
            for _ in range(5):
                clients.create_task(client(number))
    assert min(served) > 0
    assert sum(each.status()[0].in_flight for each in guards) == 0


async def test_a_replica_that_stops_leaves_its_slots_to_the_others(start: StartReplica) -> None:
    patient = Settings(lease=LeaseSettings(ttl_s=600.0))
    one, runner = await start(deployment("a", slots=4), settings=patient)
    for slot in [await wait_for_slot(one, "m") for _ in range(4)]:
        assert isinstance(slot, Slot)
        slot.release()
    other, _ = await start(deployment("a", slots=4), leased=False)
    await runner.farewell()
    await _until(lambda: isinstance(other.admit("a"), Slot) and other.status()[0].in_flight == 4)


async def test_the_first_request_after_a_rest_waits_for_one_call(start: StartReplica) -> None:
    guard, _ = await start(deployment("a"), deployment("b"))
    await _until(lambda: not guard.began("m"))
    async with asyncio.timeout(5):
        await leased(guard, "m")
    assert guard.began("m")
    for name in "ab":
        admit(guard, name).release()


@pytest.mark.parametrize("server", ["memory"], indirect=True)
async def test_a_request_after_a_rest_may_be_cancelled_as_it_waits(start: StartReplica) -> None:
    guard, _ = await start(deployment("a"))
    await _until(lambda: not guard.began("m"))
    waiting = asyncio.create_task(leased(guard, "m"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await _until(lambda: guard.began("m"))


@pytest.mark.parametrize("server", ["memory"], indirect=True)
async def test_who_waits_for_slots_of_what_is_drained_meanwhile_goes_on(
    start: StartReplica,
) -> None:
    guard, _ = await start(deployment("a"), leased=False)
    waiting = asyncio.create_task(leased(guard, "m"))
    await asyncio.sleep(0)
    guard.configure([])
    async with asyncio.timeout(5):
        await waiting


async def test_nobody_waits_for_a_model_that_is_gone(start: StartReplica) -> None:
    guard, _ = await start(deployment("a"))
    assert guard.began("gone")
    await leased(guard, "gone")


@pytest.mark.parametrize("server", REDIS, indirect=True)
async def test_what_the_store_refuses_is_kept_until_it_answers(
    server: RedisServer, start: StartReplica
) -> None:
    _, runner = await start(deployment("a"))
    assert runner.refusal is None
    server.command("ACL", "SETUSER", "default", "-@scripting")
    await _until(lambda: runner.refusal is not None)
    assert "NOPERM" in str(runner.refusal)
    server.command("ACL", "SETUSER", "default", "+@all")
    await _until(lambda: runner.refusal is None)


async def test_who_waits_is_served_when_a_slot_is_given_back(start: StartReplica) -> None:
    guard, _ = await start(deployment("a", slots=1))
    slot = admit(guard, "a")
    slot.record(Outcome.ANSWERED)
    slot.release()
    slot = admit(guard, "a")
    waiting = asyncio.create_task(wait_for_slot(guard, "m"))
    await asyncio.sleep(0.02)
    assert guard.waiting("m") == 1
    slot.release()
    got = await waiting
    assert isinstance(got, Slot)


async def test_a_cancelled_waiter_leaves_the_line(start: StartReplica) -> None:
    guard, _ = await start(deployment("a", slots=1))
    admit(guard, "a").release()
    slot = admit(guard, "a")
    waiting = asyncio.create_task(wait_for_slot(guard, "m"))
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert guard.waiting("m") == 0
    slot.release()
    assert guard.status()[0].in_flight == 0


async def test_a_waiter_cancelled_in_the_moment_of_delivery_gives_the_slot_back(
    start: StartReplica,
) -> None:
    guard, _ = await start(deployment("a", slots=1))
    admit(guard, "a").release()
    slot = admit(guard, "a")
    waiting = asyncio.create_task(wait_for_slot(guard, "m"))
    await asyncio.sleep(0.02)
    slot.release()  # delivers to the waiter, whose task has not run yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert guard.status()[0].in_flight == 0


async def test_a_canary_that_is_cancelled_before_its_first_step_gives_its_slot_back(
    start: StartReplica,
) -> None:
    async def canary(slot: Slot) -> None:
        raise AssertionError("it does not begin")

    guard, runner = await start(deployment("a"))
    fail(guard, "a")
    await _until(lambda: guard.probes_due() == ["a"])

    async def stopped_at_once() -> None:
        async with asyncio.TaskGroup() as tasks:
            runner._send_canary("a", canary, tasks)
            assert guard.status()[0].in_flight == 1
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await stopped_at_once()
    assert guard.status()[0].in_flight == 0


@pytest.mark.parametrize("server", REDIS, indirect=True)
async def test_requests_go_on_while_the_store_is_frozen_gone_and_empty(
    server: RedisServer, start: StartReplica
) -> None:
    guard, _ = await start(deployment("a", slots=6), settings=FAST)

    async def serves() -> None:
        for _ in range(100):
            slot = await wait_for_slot(guard, "m")
            assert isinstance(slot, Slot)
            with slot:
                slot.record(Outcome.ANSWERED)
            await asyncio.sleep(0.02)

    server.freeze()
    await serves()
    assert guard.degraded
    server.thaw()
    await _until(lambda: not guard.degraded)
    server.stop()
    await serves()
    assert guard.degraded
    server.start()
    await _until(lambda: not guard.degraded)
    await serves()


@pytest.mark.parametrize("server", REDIS, indirect=True)
async def test_an_open_breaker_survives_a_store_that_comes_back_empty(
    server: RedisServer, start: StartReplica
) -> None:
    slow = Settings(
        breaker=BreakerSettings(open_s=20, open_cap_s=20), lease=LeaseSettings(ttl_s=1.0)
    )
    fleet = [deployment("a"), deployment("b")]
    one, _ = await start(*fleet, settings=slow)
    fail(one, "a")
    await _until(lambda: one.status()[0].breaker is BreakerState.OPEN)
    await asyncio.sleep(0.3)
    server.restart()
    newcomer, _ = await start(*fleet, settings=slow)
    await _until(lambda: newcomer.candidates("m") == ["b"])
    assert one.candidates("m") == ["b"]


class _Garbled(MemoryCoordination):
    """A store whose first reading is what nobody has foreseen."""

    failures = 3

    async def breakers(self, known_version: int) -> BreakerReading:
        if self.failures:
            self.failures -= 1
            raise ZeroDivisionError("a defect")
        return await super().breakers(known_version)


async def test_a_runner_that_is_started_again_asks_everything_anew() -> None:
    guard = Guard("r1", FAST, time.monotonic, Random(1))
    guard.configure([deployment("one")])
    runner = Runner(guard, _Garbled(time.monotonic), time.monotonic)
    for _ in range(3):
        with pytest.raises(ExceptionGroup):
            await asyncio.wait_for(runner.run(), 10)
    task = asyncio.create_task(runner.run())
    await _until(lambda: runner.calls["ReadBreakers", True] > 0 and guard.status()[0].leased > 0)
    await _cancel(task)
