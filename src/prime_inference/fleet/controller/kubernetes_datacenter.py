"""A datacenter in Kubernetes: instances are DynamoGraphDeployments, Dynamo's operator runs them.

What is there is known from one list and a watch that goes on from it; a watch that the
server ends is begun again, one that is too old begins with a new list.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import (
    Gone,
    Invalid,
    KubernetesClient,
    Object,
)
from prime_inference.fleet.controller.reconcile import Found, InstanceState, Start
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.kubernetes import API, LABEL, deployment_documents, frontend_url
from prime_inference.reliability.background import Background

log = logging.getLogger(__name__)

GRAPH = "DynamoGraphDeployment"
MANAGED = "inference.prime/managed-by"
DEPLOYMENT = "inference.prime/deployment-id"
CONTENT = "inference.prime/content"
MODEL = "inference.prime/model"  # an annotation: a model's id has a slash, which no label may
AGAIN_SECONDS = 1.0
WATCH_AGAIN_SECONDS = 0.1  # a server that ends every watch at once is asked ten times a second


class KubernetesDatacenter:
    """Implements `controller.datacenter.Datacenter`. Open it, close it."""

    def __init__(self, name: str, client: KubernetesClient, *, controller: str = "prime") -> None:
        self.id = name
        self._client = client
        self._controller = controller
        self._graphs: dict[str, Object] = {}
        self._served: set[str] = set()  # graphs that have been ready
        self._following: asyncio.Task[None] | None = None
        self._known = False

    async def open(self) -> None:
        """Begin to follow what is there."""
        background = Background(asyncio.get_running_loop().time)
        self._following = background.start(f"watch of {self.id}", self._follow)

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait({self._following})
        await self._client.close()

    async def instances(self) -> Sequence[Found]:
        if not self._known:
            raise DatacenterUnreachable("nothing has been listed yet")
        self._served &= self._graphs.keys()
        return [self._found(graph) for graph in self._graphs.values()]

    async def start(self, start: Start) -> None:
        planned = PlannedDeployment(start.name, self.id, start.planned.spec)
        for document in deployment_documents(planned, self._client.namespace):
            metadata = document["metadata"]
            metadata["labels"] = metadata.get("labels", {}) | {
                MANAGED: self._controller,
                DEPLOYMENT: start.planned.id,
                CONTENT: start.content,
            }
            metadata["annotations"] = {MODEL: planned.spec.model.id}
            await self._apply(document)

    async def drain(self, found: Found) -> None:
        """The operator lets workers finish; the policies and the rest follow the graph."""
        selector = f"{LABEL}={found.name}"
        await self._client.delete(API, GRAPH, found.name)
        for api, kind in (
            ("networking.k8s.io/v1", "NetworkPolicy"),
            ("v1", "ConfigMap"),
            ("apps/v1", "Deployment"),
            ("v1", "Service"),
        ):
            objects, _ = await self._client.list(api, kind, selector)
            for one in objects:
                await self._client.delete(api, kind, one["metadata"]["name"])

    async def _apply(self, document: Object) -> None:
        try:
            await self._client.put(document)
        except Invalid as error:
            log.error("%s is refused: %s", document["metadata"]["name"], error)
            raise DatacenterUnreachable(f"refused: {error}") from error

    async def _follow(self) -> None:
        while True:
            try:
                graphs, version = await self._client.list(API, GRAPH, self._selector)
                self._graphs = {one["metadata"]["name"]: one for one in graphs}
                self._known = True
                await self._watch(version)
            except Gone:
                continue
            except DatacenterUnreachable as error:
                log.warning("%s: %s", self.id, error)
                self._known = False
                await asyncio.sleep(AGAIN_SECONDS)

    async def _watch(self, version: str) -> None:
        while True:
            async for kind, graph in self._client.watch(API, GRAPH, self._selector, version):
                version = graph["metadata"]["resourceVersion"]
                if kind == "DELETED":
                    self._graphs.pop(graph["metadata"]["name"], None)
                elif kind != "BOOKMARK":
                    self._graphs[graph["metadata"]["name"]] = graph
            await asyncio.sleep(WATCH_AGAIN_SECONDS)

    @property
    def _selector(self) -> str:
        return f"{MANAGED}={self._controller}"

    def _found(self, graph: Object) -> Found:
        metadata = graph["metadata"]
        name, labels = metadata["name"], metadata.get("labels", {})
        planned_url = frontend_url(name, self._client.namespace)
        state = state_of(graph)
        if state == "ready":
            self._served.add(name)
        elif state == "starting" and name in self._served:
            state = "failing"  # one pod that is started again is enough for that
        return Found(
            name=name,
            deployment=labels.get(DEPLOYMENT, ""),
            content=labels.get(CONTENT, ""),
            datacenter=self.id,
            model=metadata.get("annotations", {}).get(MODEL, ""),
            state=state,
            base_url=planned_url,
            why=_why(graph),
        )


def _why(graph: Object) -> str:
    """What the operator says about a graph that is not ready."""
    conditions = graph.get("status", {}).get("conditions", [])
    said = [one for one in conditions if one["type"] == "Ready" and one["status"] != "True"]
    return " ".join(one.get("message", "") for one in said)


def state_of(graph: Object) -> InstanceState:
    """Of a graph, from what the operator wrote into its status."""
    if graph["metadata"].get("deletionTimestamp"):
        return "draining"
    status = graph.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions", [])}
    if conditions.get("Ready") == "True":
        return "ready"
    return "failing" if status.get("state") == "failed" else "starting"
