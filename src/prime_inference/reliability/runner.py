"""The task that connects a replica's `Guard` with the coordination store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Set
from functools import partial

from prime_inference.ports.clock import Clock
from prime_inference.ports.coordination import (
    Coordination,
    CoordinationRefused,
    CoordinationUnavailable,
    ProbeAsk,
    ProbeResult,
    Push,
    Trip,
)
from prime_inference.reliability.commands import (
    Command,
    LeaseBlocks,
    ReadBreakers,
    Reply,
    ReturnBlocks,
)
from prime_inference.reliability.delivery import Delivery
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.slots import Priority, Refusal, Slot

log = logging.getLogger(__name__)

LEAST_SLEEP_S = 0.005  # what is due a little later is done together; `wake` interrupts it
WATCH_AGAIN_S = 0.25  # after a lost subscription; the poll covers the time between
FAREWELLS = 3  # a store that is busy at the moment must not cost the others our slots

Canary = Callable[[Slot], Awaitable[None]]
"""Sends one short generation to the slot's deployment; records its outcome on the slot."""


class Runner:
    """Performs a guard's commands until cancelled.

    `canary` probes ejected deployments; the guard was then made with `canary=True`.
    """

    def __init__(
        self,
        guard: Guard,
        coordination: Coordination,
        clock: Clock,
        canary: Canary | None = None,
    ) -> None:
        self._guard = guard
        self._coordination = coordination
        self._clock = clock
        self._canary = canary
        self.refusal: str | None = None  # what the store says instead of an answer
        self.calls: Counter[tuple[str, bool]] = Counter()  # to the store: what, and if it answered
        self._no_push: str | None = None  # the same about the subscription
        self._asked: dict[int, Command] = {}  # by identity; none of them has ended
        self._woken = asyncio.Event()
        guard.wake = self._woken.set

    async def run(self) -> None:
        """Ends by cancellation only; anything else that escapes is a defect.

        It may be called again after that.
        """
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch())
                while True:
                    self._step(tasks)
                    await self._sleep()
        except Exception:
            self._give_up()
            raise

    def _step(self, tasks: asyncio.TaskGroup) -> None:
        self._woken.clear()
        for command in self._guard.due():
            self._asked[id(command)] = command
            tasks.create_task(self._perform(command))
        if self._canary is not None:
            for name in self._guard.probes_due():
                self._send_canary(name, self._canary, tasks)

    def _give_up(self) -> None:
        """Every command is followed by its end; some were cancelled before they began."""
        asked = list(self._asked.values())
        self._asked.clear()
        for command in asked:
            try:
                self._guard.fail(command)
            except Exception:  # the defect may be in there; the other commands end all the same
                log.exception("%s cannot be ended", type(command).__name__)

    async def farewell(self) -> None:
        """Give all blocks back: others have them at once, not when the leases end."""
        for _ in range(FAREWELLS):
            with contextlib.suppress(CoordinationUnavailable):  # they end by themselves
                await self._ask(self._guard.farewell())
                return

    async def _sleep(self) -> None:
        seconds = max(LEAST_SLEEP_S, self._guard.next_due() - self._clock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _perform(self, command: Command) -> None:
        try:
            reply = await self._ask(command)
        except CoordinationUnavailable as error:
            self.calls[type(command).__name__, False] += 1
            self.refusal = str(error) if isinstance(error, CoordinationRefused) else self._no_push
            self._guard.fail(command)
        else:
            self.calls[type(command).__name__, True] += 1
            self.refusal = self._no_push
            self._guard.accept(command, reply)
        del self._asked[id(command)]
        self._woken.set()

    async def _ask(self, command: Command) -> Reply:
        store = self._coordination
        match command:
            case LeaseBlocks():
                return await store.lease_blocks(command.asks)
            case ReturnBlocks():
                await store.return_blocks(command.holder, command.pools, command.sequence)
                return None
            case ReadBreakers():
                return await store.breakers(command.known_version)
            case Trip():
                return await store.trip(command)
            case ProbeAsk():
                return await store.probe(command)
            case ProbeResult():
                return await store.conclude(command)

    async def _watch(self) -> None:
        while True:
            try:
                await self._coordination.watch(self._follow)
            except CoordinationRefused as error:
                self.refusal = self._no_push = str(error)
            except CoordinationUnavailable:
                self._no_push = None
            self._guard.push_lost()  # it reads often instead
            await asyncio.sleep(WATCH_AGAIN_S)

    def _follow(self, push: Push) -> None:
        self._no_push = None
        self._guard.follow(push)

    def _send_canary(self, name: str, canary: Canary, tasks: asyncio.TaskGroup) -> None:
        slot = self._guard.probe_slot(name)
        if slot is not None:
            probe = tasks.create_task(_run_canary(slot, canary))
            # not in the coroutine: cancelled before its first step it would not run at all
            probe.add_done_callback(lambda _: slot.release())


async def _run_canary(slot: Slot, canary: Canary) -> None:
    await canary(slot)


async def begin(guard: Guard, model: str) -> None:
    """A request begins: at once, unless no slots are leased because nobody came for long."""
    if not guard.began(model):
        await leased(guard, model)


async def leased(guard: Guard, model: str) -> None:
    """Wait until slots of a model are leased that nobody has asked for in a while.

    Until the store has answered, or failed to: a millisecond, at worst the time of one call.
    """
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not future.done():
            future.set_result(None)

    guard.when_leased(model, tell)
    await future


async def wait_for_slot(
    guard: Guard,
    model: str,
    priority: Priority = Priority.INTERACTIVE,
    among: Set[str] | None = None,
    *,
    begun: bool = False,
) -> Slot | Refusal:
    """A slot of the model: at once, or after a wait of at most `longest_wait_s` if that pays.

    Only of deployments `among`, if given: those that can serve the request. An answer that has
    `begun` waits in any case, and before those that have not.
    A cancelled caller leaves the line, or gives back the slot that it was just handed.
    """
    slot = guard.admit_any(model, priority, among)
    if isinstance(slot, Slot):
        return slot
    delivery = Delivery()
    waiter = guard.wait(model, priority, delivery, among, begun=begun)
    if isinstance(waiter, Refusal):
        return waiter
    return await delivery.received(partial(guard.leave, model, waiter))
