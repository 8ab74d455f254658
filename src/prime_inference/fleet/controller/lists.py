"""Tells gateways what is ready: in a file on this machine, in a ConfigMap of each cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import msgspec

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import Invalid, KubernetesClient
from prime_inference.fleet.fleet import Fleet
from prime_inference.fleet.kubernetes.gateway import gateway_list
from prime_inference.fleet.ready import ReadyDeployment, parse_ready, reachable_from, write_ready


class GatewayLists:
    """Each audience is told what it can reach. `clusters` by datacenter."""

    def __init__(
        self, fleet: Fleet, folder: Path, clusters: Mapping[str, KubernetesClient]
    ) -> None:
        self._fleet = fleet
        self._clusters = clusters
        self._everything = folder / "everything.json"
        self.file = folder / "deployments.json"
        """What gateways on this machine follow."""

    def before(self) -> list[ReadyDeployment]:
        """What was published last, by whichever controller."""
        try:
            return parse_ready(self._everything.read_bytes())
        except (OSError, msgspec.DecodeError):
            return []

    async def publish(self, ready: Iterable[ReadyDeployment], down: Collection[str]) -> None:
        """Tell all of them. Raises DatacenterUnreachable once those that can be told are."""
        ready = list(ready)
        write_ready(self._everything, ready, down)
        write_ready(self.file, self._for_this_machine(ready), down)
        failed = []
        for name, client in self._clusters.items():
            mine = reachable_from(name, ready, self._fleet.datacenters)
            try:
                await client.put(gateway_list(self._fleet.name, client.namespace, mine, down))
            except (DatacenterUnreachable, Invalid) as error:
                failed.append(f"{name}: {error}")
        if failed:
            raise DatacenterUnreachable("; ".join(failed))

    def _for_this_machine(self, ready: list[ReadyDeployment]) -> list[ReadyDeployment]:
        """Its own datacenters' deployments answer on loopback."""
        here = [one for one in ready if one.datacenter not in self._clusters]
        others = [one for one in ready if one.datacenter in self._clusters]
        return here + reachable_from("", others, self._fleet.datacenters)
