"""The list of deployments that are ready: where the fleet and the gateways meet.

A JSON file, replaced whole, so that a gateway can follow it by its modification time and a
ConfigMap can carry it. Its order says nothing; ids are unique. `down` names those that were
ready and were found not to be: requests that wait there need not wait any longer. What was
drained, or is no longer wanted, is in neither list.

An entry that no gateway could serve costs only itself: `fault` says what is wrong with one, to
who writes the list as to who reads it.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from prime_inference.domain.fleet import ID, ID_RULE, Count, SlotCount, why_no_name
from prime_inference.fleet.fleet import DatacenterEntry, PlannedDeployment
from prime_inference.wire.http_client import Origin

log = logging.getLogger(__name__)


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


class _Entries(Struct, frozen=True):
    """The file, with entries that may be anything."""

    deployments: list[msgspec.Raw]
    down: list[Any] = []


class _Named(Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class ReadyList:
    """What a reader makes of the file: `refused` are entries by name, with the reason."""

    deployments: list[ReadyDeployment]
    down: list[str]
    refused: Mapping[str, str]


@lru_cache(maxsize=16_384)  # of a list of thousands few entries are new: 10 us each
def fault(one: ReadyDeployment) -> str | None:
    """Why no gateway could serve it; None if one can."""
    try:
        msgspec.convert(msgspec.to_builtins(one), ReadyDeployment)  # bounds of numbers
        Origin.parse(one.base_url)
    except ValueError as error:  # msgspec.ValidationError is one
        return str(error)
    if not ID.fullmatch(one.id):
        return f"{one.id[:80]!r} cannot be an id. {ID_RULE}"
    for field in ("model", "revision", "datacenter"):
        value = getattr(one, field)
        if reason := why_no_name(value):
            return f"{field} {value[:80]!r} {reason}"
    return None


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


def ready_document(deployments: Iterable[ReadyDeployment], down: Collection[str] = ()) -> bytes:
    """The file's content, without entries that gateways would refuse: those are logged."""
    sound, refused = _sound(deployments)
    for name, reason in refused.items():
        log.error("%s is not listed: %s", name, reason)
    return msgspec.json.encode(_Document(sound, sorted(down)))


def parse_list(data: bytes) -> ReadyList:
    """Every entry that can be served, and why the others cannot.

    Raises msgspec.DecodeError, RecursionError where the file as a whole is none.
    """
    entries = msgspec.json.decode(data, type=_Entries)
    found, refused = [], {}
    for place, raw in enumerate(entries.deployments, 1):
        try:
            found.append(msgspec.json.decode(raw, type=ReadyDeployment))
        except (ValueError, RecursionError) as error:
            refused[_name_of(raw, place)] = str(error)
    sound, more = _sound(found)
    down = [name for name in entries.down if isinstance(name, str)]
    return ReadyList(sound, down, refused | more)


def parse_ready(data: bytes) -> list[ReadyDeployment]:
    """`parse_list`, only what can be served."""
    return parse_list(data).deployments


def _sound(
    deployments: Iterable[ReadyDeployment],
) -> tuple[list[ReadyDeployment], dict[str, str]]:
    """Entries that can be served, each id once, and why others cannot."""
    sound: dict[str, ReadyDeployment] = {}
    refused = {}
    for one in deployments:
        reason = "another entry has its id" if one.id in sound else fault(one)
        if reason is None:
            sound[one.id] = one
        else:
            refused[_shown(one.id)] = reason
    return list(sound.values()), refused


def _name_of(raw: msgspec.Raw, place: int) -> str:
    try:
        return _shown(msgspec.json.decode(raw, type=_Named).id)
    except (ValueError, RecursionError):
        return f"entry {place}"


def _shown(name: str) -> str:
    return name if ID.fullmatch(name) else repr(name[:80])


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
