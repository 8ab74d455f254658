"""Stands in for a Kubernetes API server with Dynamo's operator; a cluster does not exist here.

Enforces what a controller meets: the schema of DynamoGraphDeployment v1beta1 as its Go types
declare it (fields, enums, patterns, bounds), resource versions, conflicts, watches that end,
and versions too old to watch from. Of other kinds, what Kubernetes' admission says of the fields
that are rendered. Pods are what a test puts there.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]

SPEC_FIELDS = {
    "annotations", "labels", "priorityClassName", "components", "env", "backendFramework",
    "restart", "topologyConstraint", "experimental", "providerOverride",
}  # fmt: skip
COMPONENT_FIELDS = {
    "name", "type", "runtimeVersionOverride", "globalDynamoNamespace", "podTemplate", "replicas",
    "minAvailable", "multinode", "roles", "sharedMemorySize", "modelRef", "scalingAdapter",
    "eppConfig", "frontendSidecar", "dynamoSidecar", "compilationCache", "topologyConstraint",
    "experimental", "providerOverride",
}  # fmt: skip
TYPES = {"frontend", "worker", "prefill", "decode", "planner", "epp"}
NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?")
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
KEPT_VERSIONS = 50  # of the watch's history; a real server keeps some minutes


def faults(graph: Object) -> Iterator[str]:
    """What the CRD's schema and admission say against a graph."""
    spec = graph.get("spec", {})
    yield from (f"spec.{name}: unknown field" for name in spec.keys() - SPEC_FIELDS)
    if spec.get("backendFramework") not in ("sglang", "vllm", "trtllm"):
        yield "spec.backendFramework: not one of sglang, vllm, trtllm"
    components = spec.get("components", [])
    if len(components) > 25:
        yield "spec.components: more than 25"
    names = [component.get("name", "").lower() for component in components]
    if len(set(names)) < len(names):
        yield "spec.components: names must be unique case-insensitively"
    for component in components:
        yield from _component_faults(component)


def _component_faults(component: Object) -> Iterator[str]:
    where = f"spec.components[{component.get('name')}]"
    unknown = component.keys() - COMPONENT_FIELDS
    yield from (f"{where}.{name}: unknown field" for name in unknown)
    if not NAME.fullmatch(component.get("name", "")) or len(component["name"]) > 63:
        yield f"{where}.name: no valid name"
    if component.get("type") not in TYPES:
        yield f"{where}.type: unknown"
    if component.get("replicas", 1) < 0:
        yield f"{where}.replicas: below 0"
    if "multinode" in component and component["multinode"].get("nodeCount", 0) < 2:
        yield f"{where}.multinode.nodeCount: below 2"
    containers = component.get("podTemplate", {}).get("spec", {}).get("containers", [])
    main = [one for one in containers if one.get("name") == "main"]
    if not main or not main[0].get("image"):
        yield f"{where}.podTemplate: no container 'main' with an image"
    elif not re.search(r":v?\d+\.\d+\.\d+", main[0]["image"]) and not component.get(
        "runtimeVersionOverride"
    ):
        yield f"{where}: runtimeVersionOverride is needed for an image without a version"
    if main:
        yield from _pod_faults(f"{where}.podTemplate.spec", component["podTemplate"]["spec"])


def metadata_faults(body: Object) -> Iterator[str]:
    """What every object's metadata must be."""
    metadata = body.get("metadata", {})
    if not OBJECT_NAME.fullmatch(metadata.get("name", "")) or len(metadata["name"]) > 63:
        yield "metadata.name: no valid name"
    for key, value in metadata.get("labels", {}).items():
        if not LABEL_VALUE.fullmatch(value) or len(value) > 63:
            yield f"metadata.labels[{key}]: no valid value"


def object_faults(body: Object) -> Iterator[str]:
    """What Kubernetes would say against an object of any kind that is rendered."""
    yield from metadata_faults(body)
    of_kind = {
        "DynamoGraphDeployment": faults,
        "Deployment": _deployment_faults,
        "HorizontalPodAutoscaler": _scaler_faults,
        "NetworkPolicy": _policy_faults,
    }
    if body["kind"] in of_kind:
        yield from of_kind[body["kind"]](body)


def _deployment_faults(body: Object) -> Iterator[str]:
    template = body["spec"]["template"]
    selected = body["spec"]["selector"]["matchLabels"].items()
    if not selected <= template["metadata"]["labels"].items():
        yield "spec.template.metadata.labels: the selector does not match them"
    yield from _pod_faults("spec.template.spec", template["spec"])


def _scaler_faults(body: Object) -> Iterator[str]:
    if not 1 <= body["spec"]["minReplicas"] <= body["spec"]["maxReplicas"]:
        yield "spec: minReplicas must be at least 1 and at most maxReplicas"


def _policy_faults(body: Object) -> Iterator[str]:
    for peer in (peer for rule in body["spec"]["ingress"] for peer in rule["from"]):
        if not peer or not peer.keys() <= {"podSelector", "namespaceSelector"}:
            yield "spec.ingress.from: a peer is a podSelector or a namespaceSelector"


def _pod_faults(where: str, pod: Object) -> Iterator[str]:
    """Of what the fields say of each other: mounts and volumes, values of variables, affinity."""
    volumes = {one["name"] for one in pod.get("volumes", [])}
    for container in pod["containers"]:
        mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
        yield from (f"{where}: no volume {name!r}" for name in mounted - volumes)
        for entry in container.get("env", []):
            yield from _variable_faults(where, entry)
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = pod.get("affinity", {}).get("nodeAffinity", {}).get(required, {})
    for term in affinity.get("nodeSelectorTerms", []):
        for one in term["matchExpressions"]:
            if one["operator"] not in ("In", "NotIn") or not one["values"]:
                yield f"{where}.affinity: In and NotIn need values"
            if not all(LABEL_VALUE.fullmatch(value) for value in one["values"]):
                yield f"{where}.affinity: no valid value of a label"


def _variable_faults(where: str, entry: Object) -> Iterator[str]:
    if len(entry.keys() & {"value", "valueFrom"}) != 1:
        yield f"{where}: {entry['name']} has no value"
    reference = entry.get("valueFrom", {}).get("secretKeyRef")
    if reference is not None and reference.keys() != {"name", "key"}:
        yield f"{where}: {entry['name']}: a secretKeyRef has a name and a key"


class ApiServer:
    """One namespace. `objects` by (plural, name)."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.version = 100
        self.history: list[tuple[int, str, str, Object]] = []
        self.conflicts = 0  # writes that will meet somebody else's first
        self.watches = 0
        self.silent = False  # as a server that nobody reaches
        self.refused = 0  # calls that met that
        self.failures: list[tuple[str, str]] = []  # (method, plural) that answer 500, once each
        self.hangs: set[tuple[str, str]] = set()  # (method, plural) that are never answered
        self.calls: list[tuple[str, str]] = []  # (method, plural/name) in order, but for watches
        self.watch_answer = b""  # to every watch, if anything
        self.slow_to_go = False  # graphs that are deleted stay until `let_go`
        self.tokens: set[str] = set()  # what callers proved themselves with
        self._changed = asyncio.Condition()
        self._cut = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ApiServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    # -- what a test does to it

    async def operate(self, name: str, state: str) -> None:
        """What the operator would write into a graph's status."""
        key = ("dynamographdeployments", name)
        graph = copy.deepcopy(self.objects[key])
        ready = "True" if state == "successful" else "False"
        graph["status"] = {"state": state, "conditions": [{"type": "Ready", "status": ready}]}
        await self._store("MODIFIED", key, graph)

    async def let_go(self, name: str) -> None:
        """The operator has ended all of a graph that was deleted; pods are not asked."""
        key = ("dynamographdeployments", name)
        await self._store("DELETED", key, self.objects[key])

    async def add(self, plural: str, one: Object) -> None:
        await self._store("ADDED", (plural, one["metadata"]["name"]), one)

    async def remove(self, plural: str, name: str) -> None:
        await self._store("DELETED", (plural, name), self.objects[plural, name])

    async def change(self, plural: str, name: str, changed: Object) -> None:
        """As others do, who write what they like."""
        await self._store("MODIFIED", (plural, name), changed)

    async def end_watches(self) -> None:
        """As a server does that is restarted."""
        async with self._changed:
            self._cut += 1
            self._changed.notify_all()

    def forget_history(self) -> None:
        """Versions before now are too old to watch from."""
        self.history.clear()

    def names(self, plural: str) -> list[str]:
        return sorted(name for kind, name in self.objects if kind == plural)

    # -- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, target, _ = head.split(" ", 2)
                if self.silent:
                    self.refused += 1
                    return
                if token := re.search(r"^authorization: (.+)\r$", head, re.I | re.M):
                    self.tokens.add(token[1])
                length = re.search(r"content-length: (\d+)", head, re.I)
                body = await reader.readexactly(int(length[1])) if length else b""
                url = urlsplit(target)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                if "watch" in query:
                    await self._watch(writer, url.path, query)
                    return
                status, answer = await self._answer(method, url.path, query, body)
                data = json.dumps(answer).encode()
                writer.write(
                    f"HTTP/1.1 {status} X\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(
        self, method: str, path: str, query: dict[str, str], body: bytes
    ) -> tuple[int, Object]:
        plural, _, name = path.partition("/namespaces/prime/")[2].partition("/")
        if not plural:
            return 404, {"message": "namespaces not found"}
        key = (plural, name)
        self.calls.append((method, f"{plural}/{name}" if name else plural))
        if (method, plural) in self.hangs:
            await asyncio.Event().wait()
        if (method, plural) in self.failures:
            self.failures.remove((method, plural))
            return 500, {"message": "etcd: request timed out"}
        if method == "GET" and not name:
            found = [one for (kind, _), one in self.objects.items() if kind == plural]
            items = [one for one in found if _matches(one, query.get("labelSelector", ""))]
            return 200, {"items": items, "metadata": {"resourceVersion": str(self.version)}}
        if method == "POST":
            return await self._create(plural, json.loads(body))
        if key not in self.objects:
            return 404, {"message": "not found"}
        if method == "GET":
            return 200, self.objects[key]
        if method == "DELETE":
            return await self._delete(key, json.loads(body))
        return await self._replace(key, json.loads(body))

    async def _create(self, plural: str, new: Object) -> tuple[int, Object]:
        key = (plural, new["metadata"]["name"])
        if key in self.objects:
            return 409, {"message": "exists"}
        wrong = list(object_faults(new))
        if wrong:
            return 422, {"message": "; ".join(wrong)}
        await self._store("ADDED", key, new)
        return 201, new

    async def _delete(self, key: tuple[str, str], options: Object) -> tuple[int, Object]:
        uid = self.objects[key]["metadata"]["uid"]
        if options.get("preconditions", {}).get("uid", uid) != uid:
            return 409, {"message": "the precondition names another uid"}
        if self.slow_to_go and key[0].startswith("dynamo"):
            going = copy.deepcopy(self.objects[key])
            going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            await self._store("MODIFIED", key, going)
            return 200, going
        await self._store("DELETED", key, self.objects[key])
        return 200, {}

    async def _replace(self, key: tuple[str, str], new: Object) -> tuple[int, Object]:
        if self.conflicts:
            self.conflicts -= 1
            await self._store("MODIFIED", key, copy.deepcopy(self.objects[key]))
        old = self.objects[key]
        if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
            return 409, {"message": "changed"}
        wrong = list(object_faults(new))
        if wrong:
            return 422, {"message": "; ".join(wrong)}
        await self._store("MODIFIED", key, new)
        return 200, new

    async def _store(self, kind: str, key: tuple[str, str], value: Object) -> None:
        self.version += 1
        value = copy.deepcopy(value)
        value["metadata"]["resourceVersion"] = str(self.version)
        value["metadata"].setdefault("uid", f"uid-{self.version}")
        if kind == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = value
        async with self._changed:
            self.history.append((self.version, kind, key[0], value))
            del self.history[:-KEPT_VERSIONS]
            self._changed.notify_all()

    async def _watch(self, writer: asyncio.StreamWriter, path: str, query: dict[str, str]) -> None:
        plural = path.rpartition("/")[2]
        self.watches += plural.startswith("dynamo")
        if self.watch_answer:
            writer.write(self.watch_answer)
            await writer.drain()
            return
        after, cut = int(query["resourceVersion"]), self._cut
        oldest = self.history[0][0] if self.history else self.version + 1
        if after + 1 < oldest and after < self.version:
            writer.write(b"HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}")
            await writer.drain()
            return
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        while True:
            for version, kind, which, value in list(self.history):
                if version > after and which == plural:
                    writer.write(_event(kind, value, query.get("labelSelector", "")))
                    after = version
            await writer.drain()
            async with self._changed:
                if self._cut != cut:
                    return
                if not any(version > after for version, *_ in self.history):
                    await self._changed.wait()
            if self._cut != cut:
                return
            after = max(after, *(v for v, _, which, _ in self.history if which != plural), after)


def _event(kind: str, value: Object, selector: str) -> bytes:
    """What a watch says; an object that is selected no more may have been before."""
    if not _matches(value, selector):
        if kind != "MODIFIED":
            return b""
        kind = "DELETED"
    return json.dumps({"type": kind, "object": value}).encode() + b"\n"


def _matches(value: Object, selector: str) -> bool:
    labels = value["metadata"].get("labels", {})
    pairs = [pair.split("=", 1) for pair in selector.split(",") if pair]
    return all(labels.get(name) == wanted for name, wanted in pairs)
