"""The few calls of the Kubernetes API that a controller makes, over httpx.

Reads and writes objects as dictionaries; the API server knows their schema. Inside of a
cluster the address, the token and the authority come from the pod's service account.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import ClusterEntry
from prime_inference.fleet.kubernetes.objects import LABEL, MANAGED

Object = dict[str, Any]

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_SECONDS = 10.0
ATTEMPTS = 3  # of a write that meets somebody else's
WATCH_SECONDS = 300  # the server ends a watch then; it is begun again from where it was

PLURALS: Mapping[str, str] = {
    "DynamoGraphDeployment": "dynamographdeployments",
    "NetworkPolicy": "networkpolicies",
    "ConfigMap": "configmaps",
    "Service": "services",
    "Deployment": "deployments",
    "Pod": "pods",
}


class Absent(DatacenterUnreachable):
    """No such object, or nowhere to put one: no such namespace, or kind of object."""


class Conflict(Exception):
    """The object changed since it was read, or exists already."""


class Gone(Exception):
    """The version to watch from is too old: list anew."""


class Invalid(Exception):
    """The API server refuses the object; the message is its own."""


class TokenFile(httpx.Auth):
    """A bearer token that somebody renews in a file, as a pod's is every hour."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def auth_flow(self, request: httpx.Request) -> Iterator[httpx.Request]:  # type: ignore[override]
        try:
            token = self._file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as error:
            raise DatacenterUnreachable(f"token file: {error}") from error
        request.headers["authorization"] = f"Bearer {token}"
        yield request


class KubernetesClient:
    """One API server and namespace. Close it. Calls raise DatacenterUnreachable."""

    def __init__(self, http: httpx.AsyncClient, namespace: str) -> None:
        self._http = http
        self.namespace = namespace

    @classmethod
    def of(cls, cluster: ClusterEntry) -> Self:
        """Raises FleetRefused: it is this pod's own cluster, and this is no pod."""
        server = cluster.server
        token, authority = Path(cluster.token_file), cluster.ca_file
        if not server:
            try:
                host, port = (os.environ[f"KUBERNETES_SERVICE_{part}"] for part in ("HOST", "PORT"))
            except KeyError:
                raise FleetRefused(
                    "kubernetes: name the server; only inside of a cluster it is known."
                ) from None
            server = f"https://{host}:{port}"
            token, authority = ACCOUNT / "token", str(ACCOUNT / "ca.crt")
        http = httpx.AsyncClient(
            base_url=server,
            verify=ssl.create_default_context(cafile=authority or None),
            auth=TokenFile(token) if token.name else None,
            timeout=REQUEST_SECONDS,
            trust_env=False,
        )
        return cls(http, cluster.namespace)

    async def close(self) -> None:
        await self._http.aclose()

    async def list(self, api: str, kind: str, selector: str = "") -> tuple[list[Object], str]:
        """Objects and the version they are of."""
        path = self._path(api, kind)
        found = await self._call("GET", path, params={"labelSelector": selector})
        try:
            return [_an_object(one) for one in found["items"]], _version(found)
        except (KeyError, TypeError) as error:
            raise DatacenterUnreachable(f"GET {path} answered no list") from error

    async def get(self, api: str, kind: str, name: str) -> Object | None:
        try:
            return await self._call("GET", self._path(api, kind, name))
        except Absent:
            return None

    async def apply(self, wanted: Object, *, once: bool = False) -> None:
        """Create the object, or lay what is wanted of it over what it is; `once`: only its labels
        and annotations.

        Fields, labels, annotations and finalizers of others stay. The write names the version
        that it was made from, so that nobody's change is lost. Raises Conflict, Invalid.
        """
        api, kind, name = wanted["apiVersion"], wanted["kind"], wanted["metadata"]["name"]
        found = await self.get(api, kind, name)
        if found is None:
            await self._call("POST", self._path(api, kind), body=wanted)
            return
        _require_ours(found, wanted)
        body = laid_over(found, {"metadata": wanted["metadata"]} if once else wanted)
        if body != found:
            await self._call("PUT", self._path(api, kind, name), body=body)

    async def put(self, wanted: Object, *, once: bool = False) -> None:
        """Apply the object, on top of whatever others write meanwhile. Raises Invalid."""
        for _ in range(ATTEMPTS):
            try:
                return await self.apply(wanted, once=once)
            except Conflict:
                continue  # read it anew
        raise DatacenterUnreachable(f"{wanted['metadata']['name']} keeps changing")

    async def delete(self, api: str, kind: str, name: str, *, uid: str = "") -> None:
        """Also the dependants, which end first; one that is gone already is no error. `uid`: that
        one and none that has its name since."""
        body: Object = {"propagationPolicy": "Foreground"}
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            await self._call("DELETE", self._path(api, kind, name), body=body)
        except Absent:
            return
        except Conflict as error:
            raise DatacenterUnreachable(f"{kind} {name} is another by now") from error

    async def watch(
        self, api: str, kind: str, selector: str, version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """Events after `version` until the server ends the watch; an object has a name and a
        version, that of a bookmark a version. Raises Gone."""
        params = {
            "watch": "1",
            "labelSelector": selector,
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = httpx.Timeout(REQUEST_SECONDS, read=WATCH_SECONDS + REQUEST_SECONDS)
        try:
            async with self._http.stream(
                "GET", self._path(api, kind), params=params, timeout=timeout
            ) as answer:
                if answer.status_code == httpx.codes.GONE:
                    raise Gone
                if answer.is_error:
                    raise DatacenterUnreachable(f"watch answered {answer.status_code}")
                async for line in answer.aiter_lines():
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise Gone
                    _version(event["object"])
                    if event["type"] != "BOOKMARK":
                        _an_object(event["object"])
                    yield event["type"], event["object"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise DatacenterUnreachable(f"watch: {type(error).__name__}") from error

    def _path(self, api: str, kind: str, name: str = "") -> str:
        root = f"/api/{api}" if "/" not in api else f"/apis/{api}"
        path = f"{root}/namespaces/{self.namespace}/{PLURALS[kind]}"
        return f"{path}/{name}" if name else path

    async def _call(
        self, method: str, path: str, *, body: Object | None = None, params: Any = None
    ) -> Object:
        """Raises Absent, Conflict, Invalid, DatacenterUnreachable."""
        try:
            answer = await self._http.request(method, path, json=body, params=params)
        except httpx.HTTPError as error:
            raise DatacenterUnreachable(f"{method} {path}: {type(error).__name__}") from error
        match answer.status_code:
            case httpx.codes.NOT_FOUND:
                raise Absent(f"{method} {path} answered 404")
            case httpx.codes.CONFLICT:
                raise Conflict(path)
            case httpx.codes.BAD_REQUEST | httpx.codes.UNPROCESSABLE_ENTITY:
                raise Invalid(_message(answer))
        if answer.is_error:
            raise DatacenterUnreachable(f"{method} {path} answered {answer.status_code}")
        try:
            found: Object = answer.json()
        except ValueError as error:
            raise DatacenterUnreachable(f"{method} {path} answered no JSON") from error
        return found


def _an_object(one: Object) -> Object:
    """Raises KeyError, TypeError."""
    if not isinstance(one["metadata"]["name"], str):
        raise TypeError("an object has a name")
    return one


def _version(one: Object) -> str:
    """Raises KeyError, TypeError."""
    version = one["metadata"]["resourceVersion"]
    if not isinstance(version, str):
        raise TypeError("a version is text")
    return version


def laid_over(found: Object, wanted: Object) -> Object:
    """`found` with every field as `wanted` has it, and those that it does not name as they were.

    A list of as many entries is taken entry by entry, as an API server adds defaults to them;
    any other is replaced.
    """
    return {**found, **{key: _over(found.get(key), value) for key, value in wanted.items()}}


def _over(found: Any, wanted: Any) -> Any:
    if isinstance(found, dict) and isinstance(wanted, dict):
        return laid_over(found, wanted)
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        return [_over(old, new) for old, new in zip(found, wanted, strict=True)]
    return wanted


def _require_ours(found: Object, wanted: Object) -> None:
    """Raises Invalid: somebody else keeps an object of the same name. One that lost the label of
    its controller is known by that of its instance."""
    theirs, ours = (one["metadata"].get("labels") or {} for one in (found, wanted))
    if ours.get(MANAGED) is None or theirs.get(MANAGED) == ours[MANAGED]:
        return
    if theirs.get(MANAGED) is not None or theirs.get(LABEL) != ours.get(LABEL):
        raise Invalid(f"{wanted['metadata']['name']} belongs to {theirs.get(MANAGED)!r}")


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text
