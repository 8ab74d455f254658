"""Datacenters that left the fleet's file while something may still run there."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from prime_inference.fleet.fleet import DatacenterEntry, Fleet
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.ready import replace_file

log = logging.getLogger(__name__)

BEFORE = ".before"  # behind an id that another datacenter has now; no name has a dot


class KnownClusters:
    """Every cluster in which something may run, with what it takes to reach it.

    A cluster is its server and namespace: one that has others under the id of before has left.
    """

    def __init__(self, file: Path, fleet: Fleet) -> None:
        self._file = file
        self._wanted = [one for one in fleet.datacenters if one.kubernetes is not None]
        places = {one.kubernetes.place for one in self._wanted if one.kubernetes is not None}
        taken = {one.id for one in fleet.datacenters}
        self.leaving: list[DatacenterEntry] = []
        for one in self._read():
            if one.kubernetes is not None and one.kubernetes.place not in places:
                name = free_name(one.id, taken)
                taken.add(name)
                self.leaving.append(msgspec.structs.replace(one, id=name))

    def write(self) -> None:
        """A full disk keeps no controller from starting; what cannot be written is told."""
        content = msgspec.json.encode([*self._wanted, *self.leaving])
        try:
            replace_file(self._file, content, durable=True)
        except OSError as error:
            log.error("%s cannot be written: %s", self._file, error.strerror or error)

    def left(self, name: str) -> None:
        """Nothing of it runs any more."""
        self.leaving = [one for one in self.leaving if one.id != name]
        self.write()

    def _read(self) -> Sequence[DatacenterEntry]:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=list[DatacenterEntry])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s: clusters that left the file are not known: %s", self._file, error)
            return []


def left_on_this_machine(
    fleets: Path, fleet: Fleet, taken: Collection[str]
) -> dict[str, StateFolder]:
    """Folders of datacenters that are on this machine by the file no more and have something,
    by an id that is not `taken`. Raises OSError."""
    here = {one.id for one in fleet.datacenters if one.kubernetes is None}
    found: dict[str, StateFolder] = {}
    for place in sorted(fleets.glob(f"{fleet.name}.*")):
        name, folder = place.name.removeprefix(f"{fleet.name}."), StateFolder(place)
        if name not in here and _has_something(folder):
            found[free_name(name, [*taken, *found])] = folder
    return found


def free_name(name: str, taken: Collection[str]) -> str:
    """The id of a datacenter that left, beside another that has its id now."""
    name = name.partition(BEFORE)[0]
    while name in taken:
        name += BEFORE
    return name


def _has_something(folder: StateFolder) -> bool:
    state = folder.load()
    return bool(state and state.deployments) or bool(processes.find(str(folder.folder)))
