"""Usage events of one replica that the ledger has not confirmed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prime_inference.domain.usage_event import UsageEvent


class OutboxUnavailable(Exception):
    """Events could not be written; none of them was."""


class Outbox(Protocol):
    """Survives the death of its process. `append` is called on the event loop, the others
    from the shipper's thread."""

    def append(self, events: Sequence[UsageEvent]) -> None:
        """Write events in one transaction; they are there when it returns.

        Raises OutboxUnavailable.
        """
        ...

    def sync(self) -> None:
        """See to it that the disk has what was appended."""
        ...

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        """The first events with their places, which grow."""
        ...

    def delete(self, upto: int) -> None:
        """Drop every event up to that place, which `oldest` gave: the ledger has them."""
        ...

    def count(self) -> int:
        """Events that wait."""
        ...

    def close(self) -> None: ...
