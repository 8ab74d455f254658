"""A datacenter in a cluster: graphs that Dynamo's operator makes real.

What is there is known by one list and a watch of each kind of object, so that looking costs
nothing. An instance is a graph and what belongs to it: policies come before the graph and go
after its pods. What is left of one whose graph is gone is an instance that starts: either it is
wanted, then the rest of it is made, or it is drained, again and again until nothing is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import lru_cache

import msgspec

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import (
    Invalid,
    KubernetesClient,
    Object,
    laid_over,
)
from prime_inference.fleet.controller.kubernetes_watch import Followed
from prime_inference.fleet.controller.reconcile import (
    Found,
    InstanceState,
    Start,
    deployment_of,
    digest,
)
from prime_inference.fleet.errors import FleetError
from prime_inference.fleet.fleet import PlannedDeployment
from prime_inference.fleet.kubernetes.documents import deployment_documents
from prime_inference.fleet.kubernetes.graph import API, GRAPH, frontend_url
from prime_inference.fleet.kubernetes.host_tier import MOONCAKE
from prime_inference.fleet.kubernetes.objects import COMPONENT, LABEL, MANAGED, Document
from prime_inference.fleet.kubernetes.policies import Place
from prime_inference.reliability.background import Background

DEPLOYMENT = "inference.prime/deployment-id"
CONTENT = "inference.prime/content"
MODEL = "inference.prime/model"  # an annotation: a model's id has a slash, which no label may
PLANNED = "inference.prime/planned"  # an annotation: what the instance was started as, JSON
POLICY = "NetworkPolicy"
KINDS = {
    GRAPH: API,
    POLICY: "networking.k8s.io/v1",
    "ConfigMap": "v1",
    "Deployment": "apps/v1",
    "Service": "v1",
}
WRITTEN_ONCE = (GRAPH, "Deployment")
"""A change would start their pods anew in place, and others may scale them: they are made when
they are not there, and otherwise only their labels and annotations are put right."""


class KubernetesDatacenter:
    """Implements `controller.datacenter.Datacenter`. Open it, close it."""

    def __init__(
        self, name: str, client: KubernetesClient, *, fleet: str = "prime", monitoring: str = ""
    ) -> None:
        self.id = name
        self._client = client
        self._fleet = fleet
        self._place = Place(fleet, client.namespace, monitoring)
        selector = f"{MANAGED}={fleet}"
        self._followed = {
            kind: Followed(client, api, kind, selector) for kind, api in KINDS.items()
        }
        self._served: set[str] = set()  # graphs that have been ready
        self._documents: dict[str, list[Document]] = {}  # of each instance, rendered once
        self._following: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Begin to follow what is there."""
        background = Background(asyncio.get_running_loop().time)
        self._following = [
            background.start(f"watch of {kind} in {self.id}", one.follow)
            for kind, one in self._followed.items()
        ]

    async def close(self) -> None:
        for task in self._following:
            task.cancel()
        if self._following:
            await asyncio.wait(self._following)
        await self._client.close()

    async def instances(self) -> Sequence[Found]:
        unknown = [kind for kind, one in self._followed.items() if not one.known]
        if unknown:
            raise DatacenterUnreachable(f"{', '.join(unknown)} cannot be listed")
        graphs = self._followed[GRAPH].objects
        self._served &= graphs.keys()
        left = self._left(graphs.keys())
        there = graphs.keys() | left.keys()
        self._documents = {name: one for name, one in self._documents.items() if name in there}
        return [*map(self._found, graphs.values()), *left.values()]

    async def start(self, start: Start) -> None:
        """Everything else before the graph: no engine is there before its policies are."""
        *before, graph = self._rendered(start)
        failed: DatacenterUnreachable | None = None
        for document in before:
            try:
                await self._put(document)
            except DatacenterUnreachable as error:  # the others are put right all the same
                failed = failed or error
        if failed is not None:
            raise failed
        await self._put(graph)

    def lacking(self, kept: Sequence[Start]) -> Sequence[Start]:
        return [one for one in kept if not self._is_whole(one)]

    async def drain(self, found: Found) -> None:
        """The operator lets workers finish; the policies go when no pod is left."""
        name = found.name
        graph = await self._client.get(API, GRAPH, name)
        if graph is not None and self._is_ours(graph, found):
            if not graph["metadata"].get("deletionTimestamp"):
                await self._client.delete(API, GRAPH, name, uid=graph["metadata"].get("uid", ""))
            return
        if graph is not None:  # another's, and so are its pods
            await self._delete(name, *KINDS)
            return
        pods, _ = await self._client.list("v1", "Pod", f"{LABEL}={name}")
        if all(_labels(pod).get(COMPONENT) == MOONCAKE for pod in pods):
            await self._delete(name, *(KINDS.keys() - {POLICY}))
        if not pods:
            await self._delete(name, POLICY)

    def _is_ours(self, graph: Object, found: Found) -> bool:
        """One without the fleet's label is, if it is the instance by its content."""
        labels = _labels(graph)
        fleet = labels.get(MANAGED)
        content = labels.get(CONTENT)
        return fleet == self._fleet or (fleet is None and content == found.content != "")

    async def _delete(self, name: str, *kinds: str) -> None:
        for kind in kinds:
            for one in list(self._followed[kind].objects.values()):
                if _labels(one).get(LABEL) == name:
                    await self._client.delete(KINDS[kind], kind, one["metadata"]["name"])

    def _rendered(self, start: Start) -> list[Document]:
        """Raises FleetRefused."""
        if start.name not in self._documents:
            planned = PlannedDeployment(start.name, self.id, start.planned.spec)
            documents = deployment_documents(planned, self._place)
            labels = {
                MANAGED: self._fleet,
                DEPLOYMENT: start.planned.id,
                CONTENT: start.content,
            }
            annotations = {
                MODEL: planned.spec.model.id,
                PLANNED: msgspec.json.encode(start.planned).decode(),
            }
            for document in documents:
                metadata = document["metadata"]
                metadata["labels"] = metadata["labels"] | labels
                metadata["annotations"] = annotations
            self._documents[start.name] = documents
        return self._documents[start.name]

    def _is_whole(self, start: Start) -> bool:
        try:
            return all(map(self._is_right, self._rendered(start)))
        except FleetError:
            return False  # `start` says why

    def _is_right(self, document: Document) -> bool:
        kind = document["kind"]
        there = self._followed[kind].objects.get(document["metadata"]["name"])
        if there is None:
            return False
        if kind in WRITTEN_ONCE:
            there, document = there["metadata"], document["metadata"]
        return laid_over(there, document) == there

    async def _put(self, document: Document) -> None:
        if self._is_right(document):
            return
        kind, name = document["kind"], document["metadata"]["name"]
        try:
            await self._client.put(document, once=kind in WRITTEN_ONCE)
        except Invalid as error:
            raise DatacenterUnreachable(f"{kind} {name} is refused: {error}") from error

    def _found(self, graph: Object) -> Found:
        name = graph["metadata"]["name"]
        state = state_of(graph)
        if state == "ready":
            self._served.add(name)
        elif state == "starting" and name in self._served:
            state = "failing"  # one pod that is started again is enough for that
        return self._instance(graph, name, state, _why(graph))

    def _left(self, graphs: Collection[str]) -> dict[str, Found]:
        """Instances of which only other things than the graph are there."""
        left: dict[str, Found] = {}
        for followed in self._followed.values():
            for one in followed.objects.values():
                name = _labels(one).get(LABEL, "")
                if name and name not in graphs:
                    left[name] = self._instance(one, name, "starting")
        return left

    def _instance(self, one: Object, name: str, state: InstanceState, why: str = "") -> Found:
        """Labels that somebody took away are known from the annotation, and put right then."""
        labels, annotations = _labels(one), one["metadata"].get("annotations") or {}
        planned = _planned(annotations.get(PLANNED, ""))
        return Found(
            name=name,
            deployment=labels.get(DEPLOYMENT) or (planned.id if planned else deployment_of(name)),
            content=labels.get(CONTENT) or (digest(planned) if planned else ""),
            datacenter=self.id,
            model=annotations.get(MODEL) or (planned.spec.model.id if planned else ""),
            state=state,
            base_url=frontend_url(name, self._client.namespace),
            why=why,
            planned=planned,
        )


def _labels(one: Object) -> dict[str, str]:
    return one["metadata"].get("labels") or {}


@lru_cache(maxsize=16_384)
def _planned(text: str) -> PlannedDeployment | None:
    try:
        return msgspec.json.decode(text, type=PlannedDeployment)
    except (ValueError, RecursionError):  # of another version, or somebody wrote it
        return None


def _status(graph: Object) -> tuple[Object, list[Object]]:
    """What its operator wrote, and the conditions in it; whatever else is there is nothing."""
    status = graph.get("status")
    if not isinstance(status, dict):
        return {}, []
    conditions = status.get("conditions")
    if not isinstance(conditions, list):
        return status, []
    return status, [one for one in conditions if isinstance(one, dict)]


def _why(graph: Object) -> str:
    """What the operator says about a graph that is not ready."""
    _, conditions = _status(graph)
    said = [one for one in conditions if one.get("type") == "Ready" and one.get("status") != "True"]
    return " ".join(str(one.get("message") or "") for one in said)


def state_of(graph: Object) -> InstanceState:
    """Of a graph, from what the operator wrote into its status."""
    if graph["metadata"].get("deletionTimestamp"):
        return "draining"
    status, conditions = _status(graph)
    if any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions):
        return "ready"
    return "failing" if status.get("state") == "failed" else "starting"
