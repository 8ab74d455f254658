"""Reconciles a fleet, again and again.

A datacenter that does not answer keeps what was last known of it: its deployments stay
listed (the gateways' breakers see for themselves), and nothing is started or drained there.
One that left the file is drained until nothing of it is left; while that does not answer, its
deployments are listed no longer, which is told.
What cannot be done with one deployment or datacenter holds up no other, and is tried again at
the next step.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeGuard

from msgspec.structs import replace

from prime_inference.fleet.controller.datacenter import Datacenter, DatacenterUnreachable
from prime_inference.fleet.controller.reconcile import (
    Decision,
    Found,
    Start,
    digest,
    reconcile,
)
from prime_inference.fleet.controller.scaling import Scaling
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.ready import ReadyDeployment
from prime_inference.reliability.background import end

log = logging.getLogger(__name__)

InFlight = Callable[[Found], Awaitable[int | None]]
"""Requests that an instance works on; None where it does not say."""

Publish = Callable[[list[ReadyDeployment], list[str]], Awaitable[None]]
"""Of what is ready, and the ids of what is down (`fleet.ready`). Raises DatacenterUnreachable
where not every gateway could be told; it is called again."""

TROUBLED = ("crash-looping", "failing")

LEAVING_SECONDS = 30.0  # a cluster that left the file is asked so long before it is given up
LATE_SECONDS = 900.0  # a large model from a slow disk takes 300, its image as long
LONG_DRAIN_SECONDS = 300.0  # answers get 60, a cluster's workers as long
STEP_SECONDS = 1.0  # a look at a datacenter is one request
HELD_UP_SECONDS = 1.0  # a start or a drain is a few requests; what takes longer goes on beside
NOTICE_SECONDS = 2.0  # from a new list until every gateway follows it, with room for a slow one


class Controller:
    """`publish` gives gateways a list of deployments; it is called only when that changed.

    `before` is the list that they have: what it says of a datacenter holds until that answers.
    `leaving` are datacenters that the file has no more, `left` is told of each that is empty.
    """

    def __init__(
        self,
        datacenters: Sequence[Datacenter],
        publish: Publish,
        *,
        before: Sequence[ReadyDeployment] = (),
        leaving: Collection[str] = (),
        left: Callable[[str], None] = lambda _: None,
        surge: Mapping[str, int] | None = None,
        scaling: Scaling | None = None,
        in_flight: InFlight | None = None,
        now: Callable[[], float] = time.monotonic,
        notice_seconds: float = NOTICE_SECONDS,
    ) -> None:
        self._datacenters = {one.id: one for one in datacenters}
        self._publish = publish
        self._surge = surge if surge is not None else dict.fromkeys(self._datacenters, 1)
        self._notice_seconds = notice_seconds
        self._scaling = scaling
        self._in_flight = in_flight
        self._now = now
        self._fleet: Sequence[PlannedDeployment] = ()
        self._wanted: dict[str, tuple[PlannedDeployment, str]] = {}
        self._known: dict[str, Sequence[Found]] = dict.fromkeys(self._datacenters, ())
        self._silent: set[str] = set()
        self._before = list(before)  # of datacenters that have not answered yet
        self._leaving = dict.fromkeys(leaving, now())  # when each answered last
        self._left = left
        self._listed: tuple[list[ReadyDeployment], list[str]] | None = None
        self._listed_names = {one.id for one in before}
        self._unlisted: dict[str, float] = {}  # instances that were listed, since when no more
        self._states: dict[str, str] = {}  # of instances, as they were last
        self._told = {one.id: one for one in before}  # as whoever started them knew them
        self._later: set[str] = set()  # instances that gave way
        self._beginning: dict[str, float] = {}  # instances that are not ready, since when
        self._ending: dict[str, float] = {}  # those that are draining
        self._late: set[str] = set()
        self._long_ending: set[str] = set()
        self._stuck: set[str] = set()  # deployments that could not be replaced at the last step
        self._begun: dict[str, asyncio.Task[None]] = {}  # by instance
        self._complaints: dict[str, str] = {}  # what could not be done last, and why

    def want(self, fleet: Sequence[PlannedDeployment]) -> None:
        """Replace what is wanted. Digests are taken here, once for each change."""
        self._fleet = fleet
        self._wanted = {}
        extra = self._scaling.follow(fleet) if self._scaling is not None else []
        for planned in [*fleet, *extra]:
            self._wanted[planned.id] = (planned, digest(planned))

    @property
    def found(self) -> list[Found]:
        return [one for instances in self._known.values() for one in instances]

    async def run(self) -> None:
        """Step for ever."""
        while True:
            await self.step()
            await asyncio.sleep(STEP_SECONDS)

    async def step(self) -> Decision:
        """One look and what follows from it."""
        await asyncio.gather(*(self._look(one) for one in self._datacenters.values()))
        self._let_go()
        self._note_troubles()
        await self._scale()
        decision = reconcile(
            self._wanted.values(),
            self.found,
            surge=self._surge,
            silent=self._silent,
            late=self._late,
            later=self._later,
        )
        self._note_stuck(decision.stuck)
        for name in set(decision.gave_way) - self._later:
            log.error("%s gives way to others, and is tried again when there is room", name)
        self._later.update(decision.gave_way)
        told = await self._tell(decision.listed)
        drains = [
            one
            for one in decision.drains
            if one.state == "draining" or (told and self._is_let_go(one))
        ]
        await self._begin(
            [(one.name, self._drain(one)) for one in drains]
            + [(one.name, self._start(one)) for one in decision.starts]
            + [(one.name, self._make(one)) for one in self._lacking(decision.kept)]
        )
        return decision

    async def close(self) -> None:
        """Break off what is begun; the next controller goes on with it."""
        await end(list(self._begun.values()))

    async def _begin(self, works: Sequence[tuple[str, Coroutine[Any, Any, None]]]) -> None:
        """Do what is to be done with instances, one thing at a time with each. What takes long
        goes on meanwhile: a datacenter that does not answer a call holds up no step."""
        new = []
        for name, work in works:
            if name in self._begun:
                work.close()
                continue
            task = self._begun[name] = asyncio.create_task(work)
            task.add_done_callback(lambda _, name=name: self._begun.pop(name))  # type: ignore[misc]
            new.append(task)
        if new:
            await asyncio.wait(new, timeout=HELD_UP_SECONDS)

    async def _scale(self) -> None:
        """Want more of what is full, less of what is idle. Counting costs a request each."""
        if self._scaling is None or self._in_flight is None:
            return
        if self._scaling.adopt(self.found):
            self.want(self._fleet)
        ready = [
            one for one in self.found if one.state == "ready" and one.datacenter not in self._silent
        ]
        counts = await asyncio.gather(
            *(self._in_flight(one) for one in ready), return_exceptions=True
        )
        busy = {one.name: n for one, n in zip(ready, counts, strict=True) if _is_count(n)}
        if self._scaling.decide(self._now(), self.found, busy, self._silent):
            self.want(self._fleet)

    async def _look(self, datacenter: Datacenter) -> None:
        try:
            self._known[datacenter.id] = await datacenter.instances()
        except Exception as error:  # whatever is wrong there, the others go on
            self._complain(f"{datacenter.id} does not answer", error)
            self._silent.add(datacenter.id)
        else:
            self._complaints.pop(f"{datacenter.id} does not answer", None)
            self._silent.discard(datacenter.id)
            self._before = [one for one in self._before if one.datacenter != datacenter.id]
            if datacenter.id in self._leaving:
                self._leaving[datacenter.id] = self._now()

    def _let_go(self) -> None:
        """Of datacenters that left the file: those that are empty, and what nobody tells of."""
        for name in list(self._leaving):
            if name not in self._silent and not self._known[name]:
                log.info("nothing is left of %s, which left the file", name)
                del self._leaving[name], self._datacenters[name], self._known[name]
                self._left(name)
            elif self._now() - self._leaving[name] >= LEAVING_SECONDS:
                self._known[name] = ()
                self._before = [one for one in self._before if one.datacenter != name]
                self._complain(
                    f"{name} left the file and does not answer",
                    "its deployments are listed no longer, and are drained when it does",
                )
        for one in self._before:
            if one.datacenter not in self._datacenters:
                log.error(
                    "%s is listed no longer: the file has no datacenter %s, and nothing is known of"
                    " it; whatever runs there has to be ended there",
                    one.id,
                    one.datacenter,
                )
        self._before = [one for one in self._before if one.datacenter in self._datacenters]

    def _note_troubles(self) -> None:
        found = self.found
        for one in found:
            if one.state in TROUBLED and self._states.get(one.name) != one.state:
                why = f": {one.why}" if one.why else ""
                log.error("%s in %s is %s%s", one.name, one.datacenter, one.state, why)
        self._states = {one.name: one.state for one in found}
        self._note_what_takes_long()

    def _note_what_takes_long(self) -> None:
        """It takes up room, and may keep others from being replaced."""
        ends = {one.name for one in self.found if one.state == "draining"}
        begins = {one.name for one in self.found if one.state in ("starting", "failing")}
        now = self._now()
        self._ending = {name: self._ending.get(name, now) for name in ends}
        self._beginning = {name: self._beginning.get(name, now) for name in begins}
        long_ending = _longer(self._ending, now - LONG_DRAIN_SECONDS)
        late = _longer(self._beginning, now - LATE_SECONDS)
        for name in long_ending - self._long_ending:
            log.warning("%s is not gone %d s after its drain began", name, LONG_DRAIN_SECONDS)
        for name in late - self._late:
            log.warning("%s has not been ready for %d s", name, LATE_SECONDS)
        self._long_ending, self._late = long_ending, late

    def _note_stuck(self, stuck: Sequence[str]) -> None:
        for name in stuck:
            if name not in self._stuck:
                log.warning(
                    "%s stays as it is: its datacenter has no room for two (surge 0), and no other"
                    " deployment of its model serves",
                    name,
                )
        self._stuck = set(stuck)

    async def _tell(self, listed: Sequence[Found]) -> bool:
        """Publish the list if it changed; whether gateways have it."""
        ready = [one for one in map(self._ready, listed) if one is not None] + self._before
        down = sorted(one.name for one in self.found if one.down)
        if (ready, down) != self._listed:
            try:
                await self._publish(ready, down)
            except Exception as error:  # whatever is wrong, the steps go on
                self._complain("gateways cannot be told now", error)
                return False
            self._complaints.pop("gateways cannot be told now", None)
            self._note_published(ready, down)
        return True

    def _note_published(self, ready: list[ReadyDeployment], down: list[str]) -> None:
        names = {one.id for one in ready}
        there = {one.name for one in self.found}
        once = self._unlisted.keys() & there | self._listed_names
        self._unlisted = {name: self._unlisted.get(name, self._now()) for name in once - names}
        self._listed, self._listed_names = (ready, down), names
        log.info("gateways have %s", ", ".join(one.id for one in ready) or "nothing")
        if down:
            log.warning("gateways know to be down: %s", ", ".join(down))

    def _is_let_go(self, found: Found) -> bool:
        """Whether every gateway has had the time to follow a list without it."""
        since = self._unlisted.get(found.name, -math.inf)
        return self._now() - since >= self._notice_seconds

    def _ready(self, found: Found) -> ReadyDeployment | None:
        """As what it was started, which may be other than what is wanted now."""
        if found.planned is not None:
            ready = ReadyDeployment.of(found.planned, found.base_url, found.name)
            return replace(ready, datacenter=found.datacenter)
        if found.name not in self._told:
            self._complain(f"{found.name} cannot be listed", "it is not known what it serves")
            return None
        return replace(self._told[found.name], base_url=found.base_url)

    async def _drain(self, found: Found) -> None:
        datacenter = self._answering(found.datacenter)
        if datacenter is None:
            return
        if found.state != "draining":
            log.info("%s is drained", found.name)
        await self._attempt(f"{found.name} cannot be drained now", datacenter.drain(found))

    async def _start(self, start: Start) -> None:
        if self._answering(start.planned.datacenter) is not None:
            log.info("%s starts in %s", start.name, start.planned.datacenter)
            await self._make(start)

    async def _make(self, start: Start) -> None:
        datacenter = self._answering(start.planned.datacenter)
        if datacenter is not None:
            await self._attempt(f"{start.name} cannot be started now", datacenter.start(start))

    def _lacking(self, kept: Sequence[Start]) -> list[Start]:
        by_datacenter: defaultdict[str, list[Start]] = defaultdict(list)
        for start in kept:
            by_datacenter[start.planned.datacenter].append(start)
        return [
            start
            for name, starts in by_datacenter.items()
            if (datacenter := self._answering(name)) is not None
            for start in datacenter.lacking(starts)
        ]

    def _answering(self, name: str) -> Datacenter | None:
        return None if name in self._silent else self._datacenters.get(name)

    async def _attempt(self, complaint: str, doing: Awaitable[None]) -> None:
        try:
            await doing
        except Exception as error:  # whatever is wrong with it, the others go on
            self._complain(complaint, error)
        else:
            self._complaints.pop(complaint, None)

    def _complain(self, what: str, why: object) -> None:
        """Once, until it is another reason; with the place where that is a defect."""
        if self._complaints.get(what) == str(why):
            return
        self._complaints[what] = str(why)
        foreseen = not isinstance(why, Exception) or isinstance(
            why, DatacenterUnreachable | FleetError | OSError
        )
        log.warning("%s: %s", what, why, exc_info=None if foreseen else why)  # type: ignore[arg-type]


def _longer(since: Mapping[str, float], moment: float) -> set[str]:
    return {name for name, began in since.items() if began <= moment}


def _is_count(value: object) -> TypeGuard[int]:
    """What a frontend said of its load; NaN and the like say nothing."""
    return isinstance(value, int | float) and 0 <= value < math.inf
