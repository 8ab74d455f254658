"""Opens what a controller rules: the datacenters of the file, and those that left it."""

from __future__ import annotations

import logging
from pathlib import Path

from prime_inference.fleet.controller.datacenter import Datacenter
from prime_inference.fleet.controller.kubernetes_client import KubernetesClient
from prime_inference.fleet.controller.kubernetes_datacenter import KubernetesDatacenter
from prime_inference.fleet.controller.leaving import KnownClusters, left_on_this_machine
from prime_inference.fleet.controller.local_datacenter import LocalDatacenter
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import ClusterEntry, Fleet
from prime_inference.fleet.launcher.state import StateFolder

log = logging.getLogger(__name__)


class Places:
    """The datacenters of a fleet, and those that left its file while something ran there. Open
    it, close it."""

    def __init__(self, fleet: Fleet, state_dir: Path, *, python: str, base: Path) -> None:
        self._fleet = fleet
        self._fleets = state_dir / "fleets"
        self._python = python
        self._base = base
        self.known = KnownClusters(state_dir / "controllers" / fleet.name / "clusters.json", fleet)
        self._left_here: dict[str, StateFolder] = {}
        self.clusters: dict[str, KubernetesClient] = {}
        self.folders: dict[str, Path] = {}  # of those on this machine
        self.here: list[LocalDatacenter] = []
        self.datacenters: list[Datacenter] = []
        self.leaving: set[str] = set()

    async def open(self) -> None:
        """What left the file and cannot be opened is told, and the others go on. Raises
        FleetError, OSError."""
        self._left_here = left_on_this_machine(self._fleets, self._fleet)
        self.known.write()
        for entry in self._fleet.datacenters:
            await self._open(entry.id, entry.kubernetes, self._folder(entry.id))
        for entry in self.known.leaving:
            await self._open_leaving(entry.id, entry.kubernetes, self._folder(entry.id))
        for name, folder in self._left_here.items():
            await self._open_leaving(name, None, folder)

    async def close(self) -> None:
        for one in reversed(self.datacenters):
            if isinstance(one, LocalDatacenter):
                await one.close(stop=False)
            elif isinstance(one, KubernetesDatacenter):
                await one.close()

    def _folder(self, name: str) -> StateFolder:
        return StateFolder(self._fleets / f"{self._fleet.name}.{name}")

    async def _open_leaving(
        self, name: str, cluster: ClusterEntry | None, folder: StateFolder
    ) -> None:
        try:
            await self._open(name, cluster, folder)
        except (FleetError, OSError) as error:
            log.error("%s left the file, and what runs there cannot be ended: %s", name, error)
        else:
            log.warning("%s left the file: what runs there is drained", name)
            self.leaving.add(name)

    async def _open(self, name: str, cluster: ClusterEntry | None, folder: StateFolder) -> None:
        if cluster is None:
            local = LocalDatacenter(name, folder, python=self._python, base=self._base)
            await local.open()
            self.here.append(local)
            self.folders[name] = folder.folder
            self.datacenters.append(local)
            return
        client = self.clusters[name] = KubernetesClient.of(cluster)
        remote = KubernetesDatacenter(
            name, client, fleet=self._fleet.name, monitoring=cluster.monitoring
        )
        await remote.open()
        self.datacenters.append(remote)
