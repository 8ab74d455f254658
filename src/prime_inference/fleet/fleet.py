"""A fleet: datacenters and the deployments in them, as one file describes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import Struct

from prime_inference.fleet.catalogue import find_spec
from prime_inference.fleet.errors import SpecImpossible
from prime_inference.fleet.spec import Spec, Whole
from prime_inference.fleet.toml_file import read_toml, to_struct

NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
"""Names become those of folders, environment variables and Kubernetes services (63 at most,
with a pool's name behind)."""
CLUSTER_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Of a namespace or a Secret in Kubernetes."""
OVERFLOW = re.compile(r".*-over[0-9]+")
"""Such names are of deployments that the controller adds by itself (`controller.scaling`)."""


LAUNCHERS_OWN = "gateway"
"""No deployment has this name: logs and commands mean the gateway by it."""


class ClusterEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """A Kubernetes API server. Without one it is that of the pod that asks."""

    server: str = ""
    namespace: str = "default"
    token_file: str = ""  # read again for each request: tokens of pods live for an hour
    ca_file: str = ""  # empty: the system's authorities
    monitoring: str = ""  # a namespace whose pods may read metrics; empty: none


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


def read_fleet(path: Path) -> Fleet:
    """Raises SpecMalformed, SpecImpossible."""
    file = to_struct(read_toml(path), FleetFile, str(path))
    _check(file)
    return Fleet(
        name=file.name,
        datacenters=tuple(file.datacenter),
        deployments=tuple(
            PlannedDeployment(
                entry.id, entry.datacenter, find_spec(entry.spec, path.parent, entry.changes)
            )
            for entry in file.deployment
        ),
        gateway=file.gateway,
        overflow=file.overflow,
    )


def _check(file: FleetFile) -> None:
    reasons = []
    datacenters = [entry.id for entry in file.datacenter]
    deployments = [entry.id for entry in file.deployment]
    for name in [file.name, *datacenters, *deployments]:
        if not NAME.fullmatch(name):
            reasons.append(
                f"{name!r}: a name has lower-case letters, digits and dashes, 40 at most"
            )
    for kind, names in (("datacenters", datacenters), ("deployments", deployments)):
        if not names:
            reasons.append(f"it has no {kind}")
        if len(set(names)) < len(names):
            reasons.append(f"two {kind} have one id")
    if LAUNCHERS_OWN in deployments:
        reasons.append(f"{LAUNCHERS_OWN!r} is the name of the gateway in front of the fleet")
    reasons += [
        f"{name!r}: names that end in -over and a number are the controller's"
        for name in deployments
        if OVERFLOW.fullmatch(name)
    ]
    reasons += _cluster_reasons(file)
    for entry in file.deployment:
        if entry.datacenter not in datacenters:
            reasons.append(f"{entry.id} is in {entry.datacenter!r}, which is no datacenter of it")
    if reasons:
        raise SpecImpossible(file.name, reasons)


def _cluster_reasons(file: FleetFile) -> Iterator[str]:
    gateway = file.gateway
    if not 1 <= gateway.replicas <= gateway.max_replicas:
        yield (
            f"gateway: 1 <= replicas <= max_replicas, not {gateway.replicas} and"
            f" {gateway.max_replicas}"
        )
    names = {"gateway.secret": gateway.secret}
    for entry in file.datacenter:
        if entry.kubernetes is not None:
            names[f"{entry.id}: namespace"] = entry.kubernetes.namespace
            names[f"{entry.id}: monitoring"] = entry.kubernetes.monitoring
    for key, name in names.items():
        if name and not CLUSTER_NAME.fullmatch(name):
            yield f"{key} {name!r}: lower-case letters, digits and dashes, 63 at most"
