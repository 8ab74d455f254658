"""Datacenters that left the fleet's file while something may still run there."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import DatacenterEntry, Fleet
from prime_inference.fleet.launcher import processes
from prime_inference.fleet.launcher.state import StateFolder
from prime_inference.fleet.ready import replace_file

log = logging.getLogger(__name__)


class KnownClusters:
    """Every cluster in which something may run, with what it takes to reach it.

    A cluster is its server and namespace. One whose id has the same namespace at another address
    is taken to be the same one, by another name: were it opened twice, what it runs would be
    drained by its old name. Raises FleetRefused where an id has another namespace: instances of
    both would have the same names.
    """

    def __init__(self, file: Path, fleet: Fleet) -> None:
        self._file = file
        self._wanted = [one for one in fleet.datacenters if one.kubernetes is not None]
        places = {one.kubernetes.place for one in self._wanted if one.kubernetes is not None}
        entries = {one.id: one.kubernetes for one in fleet.datacenters}
        self.leaving: list[DatacenterEntry] = []
        for one in self._read():
            if one.kubernetes is None or one.kubernetes.place in places:
                continue
            if one.id not in entries:
                self.leaving.append(one)
                continue
            now = entries[one.id]
            if now is None or now.namespace != one.kubernetes.namespace:
                raise _has_moved(one.id, f"a cluster's namespace {one.kubernetes.namespace}")
            log.warning(
                "%s is asked at %s now, and was at %s: if that is another cluster, what runs"
                " there is not ended",
                one.id,
                now.server,
                one.kubernetes.server,
            )

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


def left_on_this_machine(fleets: Path, fleet: Fleet) -> dict[str, StateFolder]:
    """Folders of datacenters that left the file and of which something lives, by their ids.

    Raises FleetRefused where that id is a cluster's now. Names with a dot are copies.
    """
    entries = {one.id: one.kubernetes for one in fleet.datacenters}
    found: dict[str, StateFolder] = {}
    for place in sorted(fleets.glob(f"{fleet.name}.*")):
        name = place.name.removeprefix(f"{fleet.name}.")
        is_here = name in entries and entries[name] is None
        if is_here or "." in name or not processes.find(str(place)):
            continue
        if name in entries:
            raise _has_moved(name, "this machine")
        found[name] = StateFolder(place)
    return found


def _has_moved(name: str, where: str) -> FleetRefused:
    return FleetRefused(
        f"Something may run in the datacenter {name} in {where}, and the file has it elsewhere now."
        " Give the new place another id: what left the file is drained then."
    )
