"""Datacenters in memory, and what gateways are told of them."""

from __future__ import annotations

from msgspec.structs import replace

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.fleet import PlannedDeployment


def planned(spec, name="x", datacenter="a", slots=4):
    return PlannedDeployment(
        name, datacenter, replace(spec, limits=replace(spec.limits, slots=slots))
    )


class Lists:
    """What gateways were told, one list after another."""

    def __init__(self):
        self.all = []
        self.down = []

    async def __call__(self, ready, down):
        self.all.append([one.id for one in ready])
        self.down = down

    @property
    def last(self):
        return self.all[-1] if self.all else []


def everywhere(datacenter, start, state="ready"):
    """An instance that is ready at once, or whatever it is."""
    return Found(
        start.name,
        start.planned.id,
        start.content,
        datacenter,
        start.planned.spec.model.id,
        state,
        "http://x/v1",
        planned=start.planned,
    )


class Everywhere:
    """A datacenter in which everything is ready at once, but for deployments in `states`; with
    `answers` False nobody reaches it."""

    def __init__(self, name):
        self.id = name
        self.there = {}
        self.states = {}
        self.answers = True

    @property
    def deployments(self):
        return sorted(one.deployment for one in self.there.values())

    async def instances(self):
        if not self.answers:
            raise DatacenterUnreachable("no route")
        return list(self.there.values())

    async def start(self, start):
        assert self.answers
        state = self.states.get(start.planned.id, "ready")
        self.there[start.name] = everywhere(self.id, start, state)

    def lacking(self, kept):
        return ()

    async def drain(self, found):
        assert self.answers
        del self.there[found.name]
