"""A fleet as text: Kubernetes objects, shell commands, or the processes of this machine."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

from prime_inference.fleet.commands import commands, comment
from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import CLUSTER_NAME, Fleet
from prime_inference.fleet.kubernetes.documents import documents
from prime_inference.fleet.local import processes

FIRST_PORT = 20_000  # shown ports are counted up from here; the launcher takes free ones


def rendered(
    fleet: Fleet, target: str, datacenter: str | None, namespace: str = "default"
) -> Iterator[str]:
    """Lines of text for `kubernetes`, `commands` or `local`. Raises FleetRefused."""
    known = [entry.id for entry in fleet.datacenters]
    if datacenter is not None and datacenter not in known:
        raise FleetRefused(f"There is no datacenter {datacenter!r}: there are {', '.join(known)}.")
    if not CLUSTER_NAME.fullmatch(namespace):
        raise FleetRefused(
            f"{namespace[:80]!r} is no namespace: lower-case letters, digits, dashes."
        )
    chosen = [datacenter] if datacenter else known
    if target == "kubernetes":
        if len(chosen) > 1:
            raise FleetRefused(f"One datacenter is one cluster: choose one of {', '.join(known)}.")
        items = documents(fleet, chosen[0], namespace)
        yield json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2)
        return
    ports = iter(range(FIRST_PORT, 65_536))
    for deployment in fleet.deployments:
        if deployment.datacenter not in chosen:
            continue
        if target == "commands":
            yield from commands(deployment)
            continue
        for process in processes(
            deployment.spec,
            source=deployment.spec.model.source,
            discovery=Path("discovery") / deployment.id,
            free_port=lambda: next(ports),
        ):
            told = " ".join(f"{name}={shlex.quote(v)}" for name, v in process.environment.items())
            yield comment(f"{deployment.id}/{process.name}")
            yield f"{told} python {shlex.join(process.argv)}"
