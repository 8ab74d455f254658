"""The list of deployments that are ready: where the fleet and the gateways meet.

A JSON file, replaced whole, so that a gateway can follow it by its modification time and a
ConfigMap can carry it. Its order says nothing; ids are unique. `down` names those that were
ready and were found not to be: requests that wait there need not wait any longer. What was
drained, or is no longer wanted, is in neither list.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from prime_inference.domain.fleet import Count, SlotCount
from prime_inference.fleet.fleet import DatacenterEntry, PlannedDeployment


class ReadyDeployment(Struct, frozen=True, forbid_unknown_fields=True):
    """What a gateway must know of a deployment to send it requests."""

    id: str
    model: str
    revision: str
    datacenter: str
    base_url: str  # ends in /v1
    slots: SlotCount
    context_tokens: Count
    max_output_tokens: Count
    routes: tuple[str, ...] = ("chat/completions", "completions")

    @classmethod
    def of(cls, deployment: PlannedDeployment, base_url: str, name: str = "") -> Self:
        """A deployment, or its instance `name`, whose frontend answers at `base_url`."""
        spec = deployment.spec
        return cls(
            id=name or deployment.id,
            model=spec.model.id,
            revision=spec.model.revision,
            datacenter=deployment.datacenter,
            base_url=base_url,
            slots=spec.limits.slots,
            context_tokens=spec.model.context_tokens,
            max_output_tokens=spec.limits.max_output_tokens or spec.model.context_tokens,
        )


class _Document(Struct, frozen=True):
    deployments: list[ReadyDeployment]
    down: list[str] = []


def reachable_from(
    here: str, ready: Iterable[ReadyDeployment], datacenters: Iterable[DatacenterEntry]
) -> list[ReadyDeployment]:
    """Those that a gateway of datacenter `here` can reach, its own first.

    Others are reached at what their datacenter says of itself; where it says nothing, not.
    """
    elsewhere = {entry.id: entry.frontend_url for entry in datacenters}
    found = []
    for one in sorted(ready, key=lambda one: one.datacenter != here):
        if one.datacenter == here:
            found.append(one)
        elif template := elsewhere.get(one.datacenter):
            found.append(replace(one, base_url=template.replace("{deployment}", one.id)))
    return found


def ready_document(deployments: Sequence[ReadyDeployment], down: Collection[str] = ()) -> bytes:
    """The file's content."""
    return msgspec.json.encode(_Document(list(deployments), sorted(down)))


def parse_ready(data: bytes) -> list[ReadyDeployment]:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=_Document).deployments


def parse_down(data: bytes) -> list[str]:
    """Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=_Document).down


def write_ready(
    path: Path, deployments: Sequence[ReadyDeployment], down: Collection[str] = ()
) -> None:
    """Replace the file in one step. Raises OSError."""
    replace_file(path, ready_document(deployments, down))


def replace_file(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write `content` so that a reader sees the old file or the new one; `durable`: after the
    machine's sudden end too. Raises OSError."""
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        Path(draft).replace(path)
    except OSError:
        Path(draft).unlink(missing_ok=True)
        raise
