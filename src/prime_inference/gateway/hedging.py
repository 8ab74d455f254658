"""A second attempt beside one that is late; whichever brings something first goes on alone.

Nothing runs before the clock of the first attempt says that it is late: until then a hedge
is one object. The second attempt has a task of its own until it wins. Then it cancels the
first one's wait, the way `asyncio.timeout` does, and that task goes on with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from prime_inference.domain.errors import ApiError, UpstreamFailure
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.outcome import outcome_of
from prime_inference.reliability.slots import Slot

if TYPE_CHECKING:
    from prime_inference.gateway.evacuation import Stay

T = TypeVar("T")


class Rival(Generic[T]):
    """A second attempt that can win: called, it brings the answer; `abandon` gives it up."""

    def __init__(
        self, go_on: Callable[[Stay[T] | None], Awaitable[T]], abandon: Callable[[], None]
    ) -> None:
        self._go_on = go_on
        self.abandon = abandon

    def __call__(self, upstream: Upstream, slot: Slot, stay: Stay[T] | None) -> Awaitable[T]:
        """Go on, like any attempt on that deployment."""
        return self._go_on(stay)


Second = tuple[Upstream, Slot, Rival[T]]
Contend = Callable[[Upstream, Slot], Awaitable[Rival[T]]]
"""Makes an attempt as far as it needs to win. Raises ApiError."""


class Hedge(Generic[T]):
    """Of one attempt that may be late. Made in the task that makes it.

    `after` seconds without a sign of it `choose` is asked for a second deployment and a slot
    on it. `won` is the second attempt with its place, once it was faster.
    """

    def __init__(
        self,
        after: float,
        choose: Callable[[], tuple[Upstream, Slot] | None],
        contend: Contend[T],
    ) -> None:
        self.after = after
        self.won: Second[T] | None = None
        self.failed: tuple[Upstream, UpstreamFailure] | None = None
        self._choose = choose
        self._contend = contend
        self._first = asyncio.current_task()
        self._second: asyncio.Task[None] | None = None
        self._first_is_over = False
        self._called_off = False
        self._place: Upstream | None = None
        self._held: Slot | None = None  # of the second attempt, until it has won

    @property
    def beside(self) -> str | None:
        """The deployment of a second attempt that is under way, or has won."""
        under_way = self.won is not None or (self._second is not None and not self._second.done())
        return self._place.deployment.id if under_way and self._place is not None else None

    def late(self) -> None:
        """The first attempt is late: start a second one, if there is room and budget."""
        place = self._choose()
        if place is not None:
            self._place, self._held = place
            self._second = asyncio.get_running_loop().create_task(self._race(*place))
            # a task that is cancelled before its first step runs nothing of its coroutine
            self._second.add_done_callback(self._race_is_over)

    def call_off(self) -> None:
        """The first attempt is what the client gets, or nobody waits any more."""
        self._called_off = True
        if self._second is not None:
            self._second.cancel()
        if self.won is not None:
            _, slot, rival = self.won
            self.won = None
            rival.abandon()
            slot.release()

    def overtook(self) -> Second[T] | None:
        """Called when the first attempt was cancelled: the winner, if that was why."""
        assert self._first is not None
        if self.won is None or self._first.uncancel() > 0:  # the client has left as well
            return None
        won, self.won = self.won, None
        return won

    async def outcome(self) -> Second[T] | None:
        """Called when the first attempt has failed: what becomes of the second."""
        self._first_is_over = True
        if self._second is not None:
            await asyncio.wait({self._second})
        won, self.won = self.won, None
        return won

    async def _race(self, upstream: Upstream, slot: Slot) -> None:
        try:
            rival = await self._contend(upstream, slot)
        except ApiError as error:
            if isinstance(error, UpstreamFailure):
                slot.record(outcome_of(error, error.upstream_status))
                self.failed = upstream, error
            error.dealt_with()
        else:
            if self._called_off:
                rival.abandon()
                return
            self._held = None
            self.won = upstream, slot, rival
            if not self._first_is_over and self._first is not None:
                self._first.cancel()

    def _race_is_over(self, race: asyncio.Task[None]) -> None:
        """Give its slot back, however it ended, unless it has won."""
        held, self._held = self._held, None
        if held is not None:
            held.release()
