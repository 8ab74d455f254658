"""What of a fleet lives, and what its state is to say of it.

The environment of what runs is the truth: the state may be lost, older than what runs, or a
copy of another fleet's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from prime_inference.fleet.fleet import LAUNCHERS_OWN
from prime_inference.fleet.launcher.processes import Identity, Member, is_of
from prime_inference.fleet.launcher.state import (
    Carried,
    DeploymentRecord,
    FleetState,
    ProcessRecord,
    StateFolder,
)
from prime_inference.fleet.launcher.takeover import same_processes
from prime_inference.fleet.local import Process


class _Living(NamedTuple):
    """A process that runs, with what it carries: what it was started as, and what of. Both are
    None where that cannot be read."""

    name: str
    identity: Identity
    process: Process | None
    deployment: DeploymentRecord | None  # None for the gateway too


def lives(record: ProcessRecord, folder: StateFolder) -> bool:
    """Whether a recorded process runs and is no other fleet's."""
    return record.lives and is_of(record.pid, folder.folder) is not False


def take_stock(state: FleetState, folder: StateFolder, members: Sequence[Member]) -> list[Identity]:
    """Have the state name all of the fleet's processes. Returns those that no deployment has
    room for: a second one of a name, one of another content than the youngest of its
    deployment, one that carries nothing."""
    _forget_others(state, folder, {one.identity: one.name for one in members})
    by_deployment: dict[str, list[_Living]] = {}
    for member in sorted(members, key=lambda one: one.identity.started, reverse=True):
        deployment, _, name = member.name.partition("/")
        by_deployment.setdefault(deployment, []).append(_read(member, deployment, name))
    strays = []
    for deployment, ones in by_deployment.items():
        if deployment == LAUNCHERS_OWN:
            strays += _adopt_gateway(state, ones)
        else:
            strays += _adopt(state, deployment, ones)
    return strays


def _forget_others(state: FleetState, folder: StateFolder, names: dict[Identity, str]) -> None:
    """What the state takes for its own and is another fleet's, or another process of ours."""
    for name, record in state.processes():
        known = record.identity
        if known is not None and (not lives(record, folder) or names.get(known, name) != name):
            record.pid = record.started = 0
            record.served = False


def _read(member: Member, deployment: str, name: str) -> _Living:
    try:
        record, process = msgspec.json.decode(member.record, type=Carried)
    except (msgspec.DecodeError, RecursionError):
        return _Living(name, member.identity, None, None)
    whose = LAUNCHERS_OWN if record is None else record.planned.id
    if (whose, process.name) != (deployment, name):
        return _Living(name, member.identity, None, None)
    return _Living(name, member.identity, process, record)


def _adopt_gateway(state: FleetState, ones: list[_Living]) -> list[Identity]:
    """The one that the state knows, else the youngest."""
    if state.gateway is None or not state.gateway.pid:
        before = None if state.gateway is None else state.gateway.process
        known = [one for one in ones if one.process or before]
        for one in known[:1]:
            process = one.process or before
            assert process is not None
            state.gateway = _record(process, one.identity)
    kept = None if state.gateway is None else state.gateway.identity
    return [one.identity for one in ones if one.identity != kept]


def _adopt(state: FleetState, name: str, ones: list[_Living]) -> list[Identity]:
    """`ones`, the youngest first: it tells what the deployment is, if the state was written before
    it was started."""
    record = state.deployments.get(name)
    youngest = next((one for one in ones if one.deployment is not None), None)
    if youngest is not None and youngest.deployment is not None and _is_old(record, youngest):
        told = youngest.deployment
        same = record is not None and same_processes(record, told.planned, told.base)
        known = record.processes if record is not None and same else {}
        record = state.deployments[name] = replace(told, processes=dict(known))
    if record is None:
        return [one.identity for one in ones]
    strays = [one.identity for one in ones if not _claimed(record, one)]
    frontend = record.processes.get("frontend")
    if frontend is not None and frontend.pid:
        record.port = frontend.process.port
    return strays


def _is_old(record: DeploymentRecord | None, one: _Living) -> bool:
    """Whether nothing that lives and that the record knows is as young."""
    known = record.processes.values() if record is not None else ()
    return one.identity.started > max((each.started for each in known), default=0)


def _claimed(record: DeploymentRecord, one: _Living) -> bool:
    """Whether a process is one of the deployment's, which knows it from now on."""
    known = record.processes.get(one.name)
    if known is not None and known.pid:
        return known.identity == one.identity
    if one.deployment is not None and one.process is not None:
        if not same_processes(record, one.deployment.planned, one.deployment.base):
            return False
        record.processes[one.name] = _record(one.process, one.identity)
        return True
    if known is not None:  # all that is known of it is its name
        record.processes[one.name] = _record(known.process, one.identity)
    return known is not None


def _record(process: Process, identity: Identity) -> ProcessRecord:
    return ProcessRecord(process, identity.pid, identity.started)
