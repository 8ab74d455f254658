"""Usage events of one replica that the ledger has not confirmed yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prime_inference.domain.usage_event import UsageEvent


class OutboxUnavailable(Exception):
    """Events could not be written. Of a single event nothing was; of several some may be."""


class Outbox(Protocol):
    """Written on the event loop. What is in it survives the death of the process."""

    def append(self, events: Sequence[UsageEvent]) -> None:
        """Write events; they are there when it returns. Raises OutboxUnavailable."""
        ...

    def places(self) -> tuple[int, int]:
        """How far the ledger has confirmed, and where the last event ends, in bytes.

        Fewer only where files were cut.
        """
        ...

    def waiting(self) -> int:
        """Bytes that the ledger has not confirmed."""
        ...

    def set_aside(self) -> int:
        """Events that the ledger can never take; they are kept apart."""
        ...

    @property
    def rewound(self) -> int:
        """How often the outbox was not as it was left, and was shipped again from its start."""
        ...

    def close(self) -> None: ...


class OutboxReader(Protocol):
    """Read by one shipper, in a thread or a process of its own."""

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        """The first events with their places, which grow."""
        ...

    def set_aside(self, event: UsageEvent) -> None:
        """Keep an event apart, for a person to look at, before it is deleted here."""
        ...

    def sync(self) -> None:
        """See to it that the disk has what was appended."""
        ...

    def delete(self, upto: int) -> None:
        """Drop every event up to that place, which `oldest` gave: the ledger has them."""
        ...

    def close(self) -> None: ...
