"""The audit log: each entry carries the hash of the one before, so none can go unnoticed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

FIRST = "0" * 64  # what the first entry follows


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change: who did what to what. `detail` is JSON and holds no secret."""

    place: int
    at: int  # microseconds since the epoch
    actor: str
    action: str
    subject: str
    detail: str
    previous: str
    hash: str


def chained(
    place: int, at: int, actor: str, action: str, subject: str, detail: str, previous: str
) -> AuditEntry:
    """The entry that follows the one whose hash is `previous`."""
    said = msgspec.json.encode([place, at, actor, action, subject, detail, previous])
    digest = hashlib.sha256(said).hexdigest()
    return AuditEntry(place, at, actor, action, subject, detail, previous, digest)


def first_break(entries: Iterable[AuditEntry]) -> int | None:
    """The place of the first entry that was changed, or follows one that is gone; else None."""
    previous = FIRST
    for place, entry in enumerate(entries, start=1):
        said = (entry.at, entry.actor, entry.action, entry.subject, entry.detail)
        if entry != chained(place, *said, previous):
            return place
        previous = entry.hash
    return None
