"""Reconciles a fleet, again and again.

A datacenter that does not answer keeps what was last known of it: its deployments stay
listed (the gateways' breakers see for themselves), and nothing is started or drained there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from prime_inference.fleet.controller.datacenter import Datacenter, DatacenterUnreachable
from prime_inference.fleet.controller.reconcile import (
    Decision,
    Found,
    Start,
    digest,
    reconcile,
)
from prime_inference.fleet.controller.scaling import Scaling
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.ready import ReadyDeployment

log = logging.getLogger(__name__)

InFlight = Callable[[Found], Awaitable[int | None]]
"""Requests that an instance works on; None where it does not say."""

Publish = Callable[[list[ReadyDeployment], list[str]], Awaitable[None]]
"""Of what is ready, and the ids of what is down (`fleet.ready`). Raises DatacenterUnreachable
where not every gateway could be told; it is called again."""

TROUBLED = ("crash-looping", "failing")

STEP_SECONDS = 1.0  # a look at a datacenter is one request
NOTICE_SECONDS = 2.0  # from a new list until every gateway follows it, with room for a slow one


class Controller:
    """`publish` gives gateways a list of deployments; it is called only when that changed.

    `before` is the list that they have: what it says of a datacenter holds until that answers.
    """

    def __init__(
        self,
        datacenters: Sequence[Datacenter],
        publish: Publish,
        *,
        before: Sequence[ReadyDeployment] = (),
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
        self._listed: tuple[list[ReadyDeployment], list[str]] | None = None
        self._states: dict[str, str] = {}  # of instances, as they were last
        self._plans: dict[str, PlannedDeployment] = {}  # by content: old instances too

    def want(self, fleet: Sequence[PlannedDeployment]) -> None:
        """Replace what is wanted. Digests are taken here, once for each change."""
        self._fleet = fleet
        self._wanted = {}
        extra = self._scaling.extra if self._scaling is not None else []
        for planned in [*fleet, *extra]:
            content = digest(planned)
            self._wanted[planned.id] = (planned, content)
            self._plans[content] = planned

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
        self._note_troubles()
        await self._scale()
        kept = {one.content for one in self.found} | {one[1] for one in self._wanted.values()}
        self._plans = {name: plan for name, plan in self._plans.items() if name in kept}
        decision = reconcile(self._wanted.values(), self.found, surge=self._surge)
        drains = decision.drains
        try:
            if await self._tell(decision.listed) and drains:
                await asyncio.sleep(self._notice_seconds)
        except DatacenterUnreachable as error:
            log.warning("gateways cannot be told now: %s", error)
            drains = []  # somebody still sends requests there
        await asyncio.gather(
            *(self._drain(one) for one in drains),
            *(self._start(one) for one in decision.starts),
        )
        return decision

    async def _scale(self) -> None:
        """Want more of what is full, less of what is idle. Counting costs a request each."""
        if self._scaling is None or self._in_flight is None:
            return
        if self._scaling.adopt(self._fleet, self.found):
            self.want(self._fleet)
        ready = [one for one in self.found if one.state == "ready"]
        counts = await asyncio.gather(*(self._in_flight(one) for one in ready))
        busy = {one.name: count or 0 for one, count in zip(ready, counts, strict=True)}
        if self._scaling.decide(self._now(), self._fleet, self.found, busy):
            self.want(self._fleet)

    async def _look(self, datacenter: Datacenter) -> None:
        try:
            self._known[datacenter.id] = await datacenter.instances()
        except DatacenterUnreachable as error:
            if datacenter.id not in self._silent:
                log.warning("%s does not answer: %s", datacenter.id, error)
            self._silent.add(datacenter.id)
        else:
            self._silent.discard(datacenter.id)
            self._before = [one for one in self._before if one.datacenter != datacenter.id]

    def _note_troubles(self) -> None:
        found = self.found
        for one in found:
            if one.state in TROUBLED and self._states.get(one.name) != one.state:
                why = f": {one.why}" if one.why else ""
                log.error("%s in %s is %s%s", one.name, one.datacenter, one.state, why)
        self._states = {one.name: one.state for one in found}

    async def _tell(self, listed: Sequence[Found]) -> bool:
        """Publish the list; whether it changed."""
        ready = [one for one in map(self._ready, listed) if one is not None] + self._before
        down = sorted(one.name for one in self.found if one.down)
        if (ready, down) == self._listed:
            return False
        await self._publish(ready, down)
        self._listed = ready, down
        log.info("gateways have %s", ", ".join(one.id for one in ready) or "nothing")
        if down:
            log.warning("gateways know to be down: %s", ", ".join(down))
        return True

    def _ready(self, found: Found) -> ReadyDeployment | None:
        planned = self._plans.get(found.content)
        if planned is None:
            planned = self._wanted.get(found.deployment, (None, ""))[0]
        if planned is None:
            return None
        return ReadyDeployment.of(planned, found.base_url, found.name)

    async def _drain(self, found: Found) -> None:
        datacenter = self._datacenters.get(found.datacenter)
        if datacenter is None or found.datacenter in self._silent:
            return
        if found.state != "draining":
            log.info("%s is drained", found.name)
        try:
            await datacenter.drain(found)
        except DatacenterUnreachable as error:
            log.warning("%s cannot be drained now: %s", found.name, error)

    async def _start(self, start: Start) -> None:
        name = start.planned.datacenter
        datacenter = self._datacenters.get(name)
        if datacenter is None or name in self._silent:
            return
        log.info("%s starts in %s", start.name, name)
        try:
            await datacenter.start(start)
        except DatacenterUnreachable as error:
            log.warning("%s cannot be started now: %s", start.name, error)
