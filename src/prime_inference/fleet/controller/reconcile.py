"""What to do about the difference between wanted and found. Pure, and linear in both.

A deployment as wanted is made real by an instance, named after it and its content. A changed
deployment is a new instance beside the old one: it starts, is listed when it is ready, and
only then is the old one taken from the list and drained. Where there is no room for both, the
old one goes first, but only while another deployment of the model serves.

What is wanted no more is drained, unless a wanted deployment of its model does not serve yet:
that one succeeds it, as a changed deployment succeeds its old instance. So a deployment that is
renamed, or moved under another name, leaves no gap. What a datacenter that does not answer was
last known to serve counts for nothing here.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
    there and stay: what belongs to them may be missing. `stuck` are deployments that cannot be
    replaced: there is no room, and no other of the model serves. `gave_way` are instances among
    `drains` that do not get ready in the room that others wait for.
    """

    listed: list[Found] = field(default_factory=list)
    drains: list[Found] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    kept: list[Start] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    gave_way: list[str] = field(default_factory=list)


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
    silent: Collection[str] = (),
    late: Collection[str] = (),
    later: Collection[str] = (),
) -> Decision:
    """`wanted` with the digest of each; `surge`: replacements that a datacenter has room for
    beside what they replace; `silent`: datacenters that do not answer; `late`: instances that
    should long be ready; `later`: those that gave way, which get what room others leave."""
    wanted = sorted(wanted, key=lambda one: bool(later) and instance_name(*one) in later)
    found = list(found)
    decision = Decision(drains=[one for one in found if one.state == "draining"])
    instances, orphans = _matched([planned for planned, _ in wanted], found, silent)
    decision.drains += [one for one in orphans if one.state != "draining"]
    now = _Now(
        serving=Counter(
            one.model for mine in instances.values() for one in mine if _serves(one, silent)
        ),
        room=_room_left(instances.values(), surge),
        silent=silent,
        late=late,
    )
    for planned, content in wanted:
        never = not surge.get(planned.datacenter)
        _one(decision, planned, content, instances[planned.id], now, no_room_ever=never)
    _give_way(decision, now)
    return decision


@dataclass(frozen=True, slots=True)
class _Now:
    """What deployments share: how many serve a model, and room for replacements."""

    serving: Counter[str]
    room: dict[str, int]
    silent: Collection[str]
    late: Collection[str]
    waiting: Counter[str] = field(default_factory=Counter)  # for room, by datacenter
    broken: list[Found] = field(default_factory=list)  # beside their elders


def _serves(one: Found, silent: Collection[str]) -> bool:
    return one.state == "ready" and one.datacenter not in silent


def _matched(
    wanted: Sequence[PlannedDeployment], found: Iterable[Found], silent: Collection[str]
) -> tuple[dict[str, list[Found]], list[Found]]:
    """The instances of each wanted deployment, those that it succeeds among them, and the
    instances that nobody wants."""
    by_deployment: defaultdict[str, list[Found]] = defaultdict(list)
    for one in found:
        by_deployment[one.deployment].append(one)
    mine = {planned.id: by_deployment.pop(planned.id, []) for planned in wanted}
    orphans = [one for instances in by_deployment.values() for one in instances]
    if not orphans:
        return mine, []
    heirs = [
        planned for planned in wanted if not any(_serves(one, silent) for one in mine[planned.id])
    ]
    heired = _elders(heirs, orphans, silent)
    for heir, elder in heired:
        mine[heir].append(elder)
    ends = [one for one in orphans if one.state == "draining"]
    in_the_way = _dealt([one for one in heirs if not mine[one.id]], ends, _place_of)
    in_the_way += _dealt(heirs, _without(ends, in_the_way), _place_of)
    for heir, ending in in_the_way:
        mine[heir].append(ending)
    return mine, _without(orphans, heired + in_the_way)


_Dealt = list[tuple[str, Found]]  # instances to deployments, by id


def _elders(
    heirs: Sequence[PlannedDeployment], orphans: Sequence[Found], silent: Collection[str]
) -> _Dealt:
    """To each heir one that serves, or may serve again; of its own datacenter if there is one."""
    elders: _Dealt = []
    for likely in (
        lambda one: _serves(one, silent),
        lambda one: one.state == "ready",
        lambda one: one.state == "failing",
    ):
        for key in (_place_of, _model_of):
            with_elder = {heir for heir, _ in elders}
            elders += _dealt(
                [one for one in heirs if one.id not in with_elder],
                _without(filter(likely, orphans), elders),
                key,
            )
    return elders


def _dealt(
    heirs: Iterable[PlannedDeployment],
    instances: Iterable[Found],
    key: Callable[[str, str], object],
) -> _Dealt:
    """One instance to each heir, of equal keys, as far as they go."""
    waiting: defaultdict[object, deque[Found]] = defaultdict(deque)
    for one in instances:
        waiting[key(one.model, one.datacenter)].append(one)
    return [
        (heir.id, left.popleft())
        for heir in heirs
        if (left := waiting.get(key(heir.spec.model.id, heir.datacenter)))
    ]


def _place_of(model: str, datacenter: str) -> object:
    return model, datacenter


def _model_of(model: str, datacenter: str) -> object:
    return model


def _without(instances: Iterable[Found], dealt: _Dealt) -> list[Found]:
    taken = {one.name for _, one in dealt}
    return [one for one in instances if one.name not in taken]


def _room_left(deployments: Iterable[Sequence[Found]], surge: Mapping[str, int]) -> dict[str, int]:
    """Replacements that may still begin: those that run beside their elders use up room."""
    room = dict(surge)
    for instances in deployments:
        if len(instances) > 1:
            for datacenter, count in Counter(one.datacenter for one in instances).items():
                room[datacenter] = room.get(datacenter, 0) - (count - 1)
    return room


def _one(
    decision: Decision,
    planned: PlannedDeployment,
    content: str,
    mine: list[Found],
    now: _Now,
    *,
    no_room_ever: bool,
) -> None:
    current = next(
        (one for one in mine if one.content == content and one.deployment == planned.id), None
    )
    old = [one for one in mine if one is not current and one.state != "draining"]
    if current is not None and current.state != "draining":
        decision.kept.append(Start(current.name, content, planned))
    if current is not None and current.state == "ready":
        decision.listed.append(current)
        if _serves(current, now.silent):
            decision.drains += old
            return
    keep = _keep(old, now.silent)
    surplus = [one for one in old if one is not keep]
    now.serving[planned.spec.model.id] -= sum(_serves(one, now.silent) for one in surplus)
    decision.drains += surplus
    if current is not None and keep is not None and _is_broken(current, now.late):
        now.broken.append(current)
    missing = current is None and (keep is None or not surplus)
    if missing and not _starts(decision, planned, content, mine, now.room):
        now.waiting[planned.datacenter] += not no_room_ever
        if keep is not None and not _stays(decision, planned, keep, now, no_room_ever=no_room_ever):
            decision.drains.append(keep)
            return
    if keep is not None:
        _go_on(decision, keep)


def _stays(
    decision: Decision, planned: PlannedDeployment, keep: Found, now: _Now, *, no_room_ever: bool
) -> bool:
    """Whether an instance goes on that takes up the room of its successor: not if it is broken,
    or there will never be room for both and another deployment of the model serves meanwhile."""
    if keep.state != "ready":
        return False
    if no_room_ever and now.serving[planned.spec.model.id] > 1:
        now.serving[planned.spec.model.id] -= 1
        return False
    if no_room_ever:
        decision.stuck.append(planned.id)
    return True


def _is_broken(one: Found, late: Collection[str]) -> bool:
    return one.state == "crash-looping" or (
        one.state in ("starting", "failing") and one.name in late
    )


def _give_way(decision: Decision, now: _Now) -> None:
    """What is broken must not keep others from being replaced: one for each that waits."""
    for one in now.broken:
        if now.waiting[one.datacenter] > 0 and one.datacenter not in now.silent:
            now.waiting[one.datacenter] -= 1
            decision.drains.append(one)
            decision.gave_way.append(one.name)
    if decision.gave_way:
        decision.kept = [one for one in decision.kept if one.name not in decision.gave_way]


def _keep(old: Sequence[Found], silent: Collection[str]) -> Found | None:
    """Of several that are out of date one goes on serving, or may serve again before the current
    one does; the others only take up room."""
    by_hope = sorted(
        (one for one in old if one.state in ("ready", "failing")),
        key=lambda one: (not _serves(one, silent), one.state != "ready"),
    )
    return by_hope[0] if by_hope else None


def _starts(
    decision: Decision,
    planned: PlannedDeployment,
    content: str,
    mine: Iterable[Found],
    room: dict[str, int],
) -> bool:
    """Start it, if nothing of it is in its datacenter or there is room beside what is there;
    whether that was so."""
    if any(one.datacenter == planned.datacenter for one in mine):
        if room.get(planned.datacenter, 0) <= 0:
            return False
        room[planned.datacenter] -= 1
    decision.starts.append(Start(instance_name(planned, content), content, planned))
    return True


def _go_on(decision: Decision, old: Found) -> None:
    if old.planned is not None:
        decision.kept.append(Start(old.name, old.content, old.planned))
    if old.state == "ready":
        decision.listed.append(old)
