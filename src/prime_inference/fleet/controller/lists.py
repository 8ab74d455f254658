"""Tells gateways what is ready: in a file on this machine, in a ConfigMap of each cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import Invalid, KubernetesClient
from prime_inference.fleet.fleet import DatacenterEntry, Fleet
from prime_inference.fleet.kubernetes.gateway import gateway_list
from prime_inference.fleet.kubernetes.objects import Document
from prime_inference.fleet.ready import ReadyDeployment, parse_ready, reachable_from, write_ready
from prime_inference.reliability.background import end

log = logging.getLogger(__name__)


TELL_SECONDS = 2.0  # a slow API server is heard in the background: steps go on


class GatewayLists:
    """Each audience is told what it can reach. `clusters` by datacenter; gateways of those that
    are `leaving` the fleet are told too, but nothing waits for them. Close it."""

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        clusters: Mapping[str, KubernetesClient],
        leaving: Sequence[DatacenterEntry] = (),
    ) -> None:
        self._fleet = fleet
        self._clusters = clusters
        self._leaving = {one.id for one in leaving}
        self._datacenters = (*fleet.datacenters, *leaving)
        self._telling: dict[str, tuple[Document, asyncio.Task[None]]] = {}
        self._everything = folder / "everything.json"
        self.file = folder / "deployments.json"
        """What gateways on this machine follow."""

    async def close(self) -> None:
        await end([task for _, task in self._telling.values()])

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
        whys = await asyncio.gather(*(self._tell(name, ready, down) for name in self._clusters))
        failed = {name: why for name, why in zip(self._clusters, whys, strict=True) if why}
        for name in failed.keys() & self._leaving:
            log.warning("gateways of %s, which leaves, cannot be told: %s", name, failed.pop(name))
        if failed:
            raise DatacenterUnreachable("; ".join(f"{name}: {why}" for name, why in failed.items()))

    async def _tell(
        self, name: str, ready: list[ReadyDeployment], down: Collection[str]
    ) -> str | None:
        """Why a cluster's gateways do not have this list yet."""
        client = self._clusters[name]
        mine = reachable_from(name, ready, self._datacenters)
        wanted = gateway_list(self._fleet.name, client.namespace, mine, down)
        told, task = self._telling.get(name) or (wanted, asyncio.create_task(client.put(wanted)))
        self._telling[name] = told, task
        if not (await asyncio.wait({task}, timeout=TELL_SECONDS))[0]:
            return "no answer yet"
        del self._telling[name]
        try:
            task.result()
        except (DatacenterUnreachable, Invalid) as error:
            return str(error)
        except Exception as error:  # a defect, which must not keep the others from being told
            return f"{type(error).__name__}: {error}"
        return None if told == wanted else "it has the list of before"

    def _for_this_machine(self, ready: list[ReadyDeployment]) -> list[ReadyDeployment]:
        """Its own datacenters' deployments answer on loopback."""
        here = [one for one in ready if one.datacenter not in self._clusters]
        others = [one for one in ready if one.datacenter in self._clusters]
        return here + reachable_from("", others, self._datacenters)
