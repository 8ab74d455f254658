"""What a controller needs of a datacenter, whatever runs there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prime_inference.fleet.controller.reconcile import Found, Start


class Datacenter(Protocol):
    """One failure domain. Calls may fail with DatacenterUnreachable; they are made again."""

    @property
    def id(self) -> str: ...

    async def instances(self) -> Sequence[Found]:
        """Every instance that is there, whoever started it."""
        ...

    async def start(self, start: Start) -> None:
        """Begin to start an instance, or put right what is missing of it."""
        ...

    def lacking(self, kept: Sequence[Start]) -> Sequence[Start]:
        """Those instances, of some that are there, of which something is missing or other than
        it shall be: they are to be started again. Looked at in memory at every step."""
        ...

    async def drain(self, found: Found) -> None:
        """Begin to end an instance that no gateway is told of any more, or go on with it. It is
        called at every step until nothing of the instance is left."""
        ...


class DatacenterUnreachable(Exception):
    """Nothing is known of the datacenter now; what was known of it still holds."""
