"""A fleet: datacenters and the deployments in them, as one file describes them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from prime_inference.fleet.catalogue import Reading, find_spec
from prime_inference.fleet.errors import SpecImpossible
from prime_inference.fleet.spec import Spec, Whole
from prime_inference.fleet.toml_file import read_toml, to_struct
from prime_inference.wire.http_client import Origin

NAME = re.compile(r"[a-z]([-a-z0-9]{0,36}[a-z0-9])?")
"""Names become those of folders, environment variables and Kubernetes services: at most 63 with
`-over123`, the mark of an instance and `-frontend` behind."""
CLUSTER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Of a namespace or a Secret in Kubernetes."""
OVERFLOW = re.compile(r".*-over[0-9]+")
"""Such names are of deployments that the controller adds by itself (`controller.scaling`)."""

LONGEST_SECONDS = 31_536_000.0  # a year: nothing here waits longer
MOST_REPLICAS = 1000
MOST_PORT = 65_535

LAUNCHERS_OWN = "gateway"
"""No deployment has this name: logs and commands mean the gateway by it."""


class ClusterEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A Kubernetes API server. Without one it is that of the pod that asks."""

    server: str = ""
    namespace: str = "default"
    token_file: str = ""  # read again for each request: tokens of pods live for an hour
    ca_file: str = ""  # empty: the system's authorities
    monitoring: str = ""  # a namespace whose pods may read metrics; empty: none

    @property
    def place(self) -> tuple[str, str]:
        """What makes it another one if it changes."""
        return self.server.rstrip("/").lower(), self.namespace


class DatacenterEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A failure domain. `frontend_url` is how other datacenters reach a deployment in it, with
    `{deployment}` for its id; empty where all of the fleet is on one network.

    The rest is for the controller: `gpus` that overflow may count on, instances that may run
    beside the wanted ones while they are replaced, and the cluster (none: this machine).
    """

    id: str
    frontend_url: str = ""
    gpus: Whole = 0
    surge: Whole = 1
    kubernetes: ClusterEntry | None = None


class GatewayEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """The gateway that the launcher starts in front of the fleet; port 0 is any free one."""

    enabled: bool = True
    port: Whole = 8000
    control_port: Whole = 8001
    image: str = "prime-inference:latest"  # Kubernetes only
    replicas: Whole = 2  # Kubernetes only: one may be replaced while the other serves
    max_replicas: Whole = 8
    secret: str = ""  # Kubernetes only: has PRIME_REDIS_URL and PRIME_DATABASE, which all share
    notice_seconds: float | None = None  # until gateways follow a new list; None: the longest


class DeploymentEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A deployment: a spec by name or file, with `changes` laid over its tables."""

    id: str
    datacenter: str
    spec: str
    changes: dict[str, Any] = {}


class OverflowEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """When the controller starts more of a model, and less (`controller.overflow`)."""

    gpu_budget: Whole
    full: float = 0.85
    idle: float = 0.4
    full_seconds: float = 60.0
    idle_seconds: float = 900.0
    ready_seconds: float = 900.0


class FleetFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file as it is written."""

    name: str
    datacenter: list[DatacenterEntry]
    deployment: list[DeploymentEntry]
    gateway: GatewayEntry = GatewayEntry()
    overflow: OverflowEntry | None = None


@dataclass(frozen=True, slots=True)
class PlannedDeployment:
    """A deployment as wanted: where, and what."""

    id: str
    datacenter: str
    spec: Spec


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is wanted, checked. Ids are unique and every datacenter is known."""

    name: str
    datacenters: tuple[DatacenterEntry, ...]
    deployments: tuple[PlannedDeployment, ...]
    gateway: GatewayEntry
    overflow: OverflowEntry | None = None

    def find(self, deployment_id: str) -> PlannedDeployment | None:
        return next((one for one in self.deployments if one.id == deployment_id), None)


def read_fleet(path: Path, *, reading: Reading = lambda _: None) -> Fleet:
    """`reading` is called with each file before it is read. Raises SpecMalformed,
    SpecImpossible."""
    reading(path)
    file = to_struct(read_toml(path), FleetFile, str(path))
    _check(file)
    return Fleet(
        name=file.name,
        datacenters=tuple(file.datacenter),
        deployments=tuple(_planned(entry, path.parent, reading) for entry in file.deployment),
        gateway=file.gateway,
        overflow=file.overflow,
    )


def _planned(entry: DeploymentEntry, base: Path, reading: Reading) -> PlannedDeployment:
    try:
        spec = find_spec(entry.spec, base, entry.changes, reading=reading)
    except SpecImpossible as error:  # say of which: many may have the same spec
        raise SpecImpossible(f"{entry.id} ({entry.spec})", error.reasons) from error
    return PlannedDeployment(entry.id, entry.datacenter, spec)


def _check(file: FleetFile) -> None:
    reasons = [*_names(file), *_places(file.datacenter), *_gateway(file.gateway)]
    for entry in file.datacenter:
        reasons += _datacenter(entry)
    if file.overflow is not None:
        reasons += _overflow(file.overflow)
    if reasons:
        raise SpecImpossible(file.name, reasons)


def _names(file: FleetFile) -> Iterator[str]:
    datacenters = [entry.id for entry in file.datacenter]
    deployments = [entry.id for entry in file.deployment]
    for name in [file.name, *datacenters, *deployments]:
        if not NAME.fullmatch(name):
            yield f"{name[:80]!r}: a name has lower-case letters, digits and dashes, 38 at most"
    for kind, names in (("datacenters", datacenters), ("deployments", deployments)):
        if not names:
            yield f"it has no {kind}"
        if len(set(names)) < len(names):
            yield f"two {kind} have one id"
    if LAUNCHERS_OWN in deployments:
        yield f"{LAUNCHERS_OWN!r} is the name of the gateway in front of the fleet"
    for name in filter(OVERFLOW.fullmatch, deployments):
        yield f"{name!r}: names that end in -over and a number are the controller's"
    for entry in file.deployment:
        if entry.datacenter not in datacenters:
            yield f"{entry.id} is in {entry.datacenter!r}, which is no datacenter of it"


def _places(datacenters: Iterable[DatacenterEntry]) -> Iterator[str]:
    places = Counter(one.kubernetes.place for one in datacenters if one.kubernetes is not None)
    for (server, namespace), count in places.items():
        if count > 1:
            yield f"two datacenters are namespace {namespace!r} of {server or 'this cluster'}"


def _datacenter(entry: DatacenterEntry) -> Iterator[str]:
    if entry.gpus < 0 or not 0 <= entry.surge <= MOST_REPLICAS:
        yield f"{entry.id}: gpus are 0 or more, surge is 0 to {MOST_REPLICAS}"
    if entry.frontend_url:
        try:
            Origin.parse(entry.frontend_url.replace("{deployment}", "x"))
        except ValueError as error:
            yield f"{entry.id}: frontend_url: {error}"
    if entry.kubernetes is not None:
        yield from _server(f"{entry.id}: server", entry.kubernetes.server)
        yield from _cluster_name(f"{entry.id}: namespace", entry.kubernetes.namespace)
        yield from _cluster_name(f"{entry.id}: monitoring", entry.kubernetes.monitoring)


def _server(key: str, address: str) -> Iterator[str]:
    """Of an API server; none is that of the pod's own cluster."""
    if not address:
        return
    scheme, _, rest = address.partition("://")
    try:
        if scheme not in ("http", "https") or not address.isprintable():
            raise ValueError("it is http:// or https://, a host, and a port if need be")
        Origin.parse(f"http://{rest}")
    except ValueError as error:
        yield f"{key} {address[:80]!r}: {error}"


def _cluster_name(key: str, name: str) -> Iterator[str]:
    if name and not CLUSTER_NAME.fullmatch(name):
        yield f"{key} {name[:80]!r}: lower-case letters, digits and dashes, 63 at most"


def _gateway(entry: GatewayEntry) -> Iterator[str]:
    for name, port in (("port", entry.port), ("control_port", entry.control_port)):
        if not 0 <= port <= MOST_PORT:
            yield f"gateway.{name} {port} is not within 0 and {MOST_PORT}"
    if entry.port and entry.port == entry.control_port:
        yield f"gateway.port and gateway.control_port are both {entry.port}"
    if not 1 <= entry.replicas <= entry.max_replicas <= MOST_REPLICAS:
        yield (
            f"gateway: 1 <= replicas <= max_replicas <= {MOST_REPLICAS}, not {entry.replicas} and"
            f" {entry.max_replicas}"
        )
    yield from _cluster_name("gateway.secret", entry.secret)
    if entry.notice_seconds is not None and not 0 <= entry.notice_seconds <= LONGEST_SECONDS:
        yield f"gateway.notice_seconds {entry.notice_seconds} is not within 0 and a year"
    if not entry.image or " " in entry.image or not entry.image.isprintable():
        yield f"gateway.image {entry.image[:80]!r} is no image"


def _overflow(entry: OverflowEntry) -> Iterator[str]:
    if not 0 < entry.idle < entry.full <= 1:
        yield "overflow: 0 < idle < full <= 1"
    for name, seconds in (
        ("full_seconds", entry.full_seconds),
        ("idle_seconds", entry.idle_seconds),
        ("ready_seconds", entry.ready_seconds),
    ):
        if not 0 <= seconds <= LONGEST_SECONDS:
            yield f"overflow.{name} {seconds} is not within 0 and a year"
    if entry.gpu_budget < 0:
        yield f"overflow.gpu_budget {entry.gpu_budget} is below 0"
