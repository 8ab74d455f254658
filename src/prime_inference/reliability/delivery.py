"""Hands a slot to a task that waits for it; one that nobody takes any more is given back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prime_inference.reliability.slots import Refusal, Slot


class Delivery:
    """Of one slot, or of the refusal that comes instead. Call it with the result."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[Slot | Refusal] = asyncio.get_running_loop().create_future()

    def __call__(self, result: Slot | Refusal) -> None:
        if not self._future.cancelled():
            self._future.set_result(result)
        elif isinstance(result, Slot):
            result.release()

    async def received(self, leave: Callable[[], object]) -> Slot | Refusal:
        """Wait for it. A cancelled caller leaves the line by `leave`, or gives back the slot
        that it was just handed."""
        try:
            return await self._future
        except asyncio.CancelledError:
            leave()
            if self._future.done() and not self._future.cancelled():
                result = self._future.result()
                if isinstance(result, Slot):
                    result.release()
            raise
