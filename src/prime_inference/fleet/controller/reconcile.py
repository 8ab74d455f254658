"""What to do about the difference between wanted and found. Pure, and linear in both.

A deployment as wanted is made real by an instance, named after it and its content. A changed
deployment is a new instance beside the old one: it starts, is listed when it is ready, and
only then is the old one taken from the list and drained. Where there is no room for both, the
old one goes first, but only while another deployment of the model serves.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from prime_inference.fleet.fleet import PlannedDeployment

InstanceState = Literal["starting", "crash-looping", "ready", "failing", "draining"]


@dataclass(frozen=True, slots=True)
class Found:
    """An instance as a datacenter reports it.

    `why` it is not ready, where that is known; `down`: it was ready, and its datacenter is sure
    that requests wait there in vain; `planned`: what it was started as, where that can be read.
    """

    name: str
    deployment: str  # the wanted deployment it is of
    content: str  # digest of what it was started as
    datacenter: str
    model: str
    state: InstanceState
    base_url: str = ""
    why: str = ""
    down: bool = False
    planned: PlannedDeployment | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Start this instance, or put right what belongs to it."""

    name: str
    content: str
    planned: PlannedDeployment


@dataclass(slots=True)
class Decision:
    """`listed` first: gateways must have let go of what is drained.

    What is draining is among `drains` until it is gone, whoever began to drain it. `kept` are
    there and stay: what belongs to them may be missing.
    """

    listed: list[Found] = field(default_factory=list)
    drains: list[Found] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    kept: list[Start] = field(default_factory=list)


def digest(planned: PlannedDeployment) -> str:
    """What changes when the deployment's content does."""
    text = msgspec.json.encode((planned.datacenter, planned.spec), order="sorted")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def instance_name(planned: PlannedDeployment, content: str) -> str:
    """Of the instance that makes this content real."""
    return f"{planned.id}-{content[:6]}"


def deployment_of(instance: str) -> str:
    """The deployment that an instance of this name is of."""
    return instance.rpartition("-")[0]


def reconcile(
    wanted: Iterable[tuple[PlannedDeployment, str]],
    found: Iterable[Found],
    *,
    surge: Mapping[str, int],
) -> Decision:
    """`wanted` with the digest of each; `surge`: replacements that a datacenter has room for
    beside what they replace."""
    found = list(found)
    decision = Decision(drains=[one for one in found if one.state == "draining"])
    by_deployment: defaultdict[str, list[Found]] = defaultdict(list)
    for one in found:
        by_deployment[one.deployment].append(one)
    serving = Counter(one.model for one in found if one.state == "ready")
    room = _room_left(by_deployment, surge)
    for planned, content in wanted:
        mine = by_deployment.pop(planned.id, [])
        never = not surge.get(planned.datacenter)
        _one(decision, planned, content, mine, serving, room, no_room_ever=never)
    for orphans in by_deployment.values():
        decision.drains += [one for one in orphans if one.state != "draining"]
    return decision


def _room_left(
    by_deployment: Mapping[str, list[Found]], surge: Mapping[str, int]
) -> dict[str, int]:
    """Replacements that may still begin: those that run beside their elders use up room."""
    room = dict(surge)
    for instances in by_deployment.values():
        if len(instances) > 1:
            datacenter = instances[0].datacenter
            room[datacenter] = room.get(datacenter, 0) - (len(instances) - 1)
    return room


def _one(
    decision: Decision,
    planned: PlannedDeployment,
    content: str,
    mine: list[Found],
    serving: Counter[str],
    room: dict[str, int],
    *,
    no_room_ever: bool,
) -> None:
    current = next((one for one in mine if one.content == content), None)
    old = [one for one in mine if one is not current and one.state != "draining"]
    if current is not None and current.state != "draining":
        decision.kept.append(Start(current.name, content, planned))
    if current is not None and current.state == "ready":
        decision.listed.append(current)
        decision.drains += old
        return
    # of several that are out of date one goes on serving, or may serve again before the current
    # one does; the others only take up room
    keep = next((one for state in ("ready", "failing") for one in old if one.state == state), None)
    surplus = [one for one in old if one is not keep]
    serving[planned.spec.model.id] -= sum(one.state == "ready" for one in surplus)
    decision.drains += surplus
    missing = current is None and (keep is None or not surplus)
    if (
        missing
        and not _starts(decision, planned, content, room, alone=not mine)
        and keep is not None
    ):
        if keep.state != "ready":
            decision.drains.append(keep)
            return
        if no_room_ever and serving[planned.spec.model.id] > 1:
            serving[planned.spec.model.id] -= 1
            decision.drains.append(keep)  # another deployment of the model serves meanwhile
            return
    if keep is not None:
        _go_on(decision, keep)


def _starts(
    decision: Decision,
    planned: PlannedDeployment,
    content: str,
    room: dict[str, int],
    *,
    alone: bool,
) -> bool:
    """Start it, if it is `alone` or there is room beside what is there; whether that was so."""
    if not alone and room.get(planned.datacenter, 0) <= 0:
        return False
    if not alone:
        room[planned.datacenter] -= 1
    decision.starts.append(Start(instance_name(planned, content), content, planned))
    return True


def _go_on(decision: Decision, old: Found) -> None:
    if old.planned is not None:
        decision.kept.append(Start(old.name, old.content, old.planned))
    if old.state == "ready":
        decision.listed.append(old)
