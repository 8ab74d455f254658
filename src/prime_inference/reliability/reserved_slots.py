"""Slots of deployments of which a part is reserved: lent ones, and those of a reservation."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prime_inference.domain.pools import RESERVED
from prime_inference.reliability.outcome import Outcome
from prime_inference.reliability.slots import Priority, Slot

if TYPE_CHECKING:
    from prime_inference.reliability.breaker import Ticket
    from prime_inference.reliability.deployment import DeploymentGuard
    from prime_inference.reliability.reserved_lease import ReservedLease


class SharedSlot(Slot):
    """A slot that everybody may have, on a deployment that others have reserved slots of.

    It may be one of theirs, lent: then it is called back. `on_recall` ends the attempt that
    runs on it; None as long as there is none to end.
    """

    __slots__ = ("_siblings", "began", "on_recall")

    def __init__(
        self,
        deployment: DeploymentGuard,
        priority: Priority,
        started_at: float,
        ticket: Ticket | None,
        on_release: Callable[[DeploymentGuard], None],
        siblings: dict[SharedSlot, None],
    ) -> None:
        super().__init__(deployment, priority, started_at, ticket, on_release)
        self.began = False
        self.on_recall: Callable[[], None] | None = None
        self._siblings = siblings  # all that are taken, the oldest first
        siblings[self] = None

    def when_recalled(self, end: Callable[[], None]) -> None:
        self.on_recall = end

    def first_token(self) -> None:
        self.began = True
        super().first_token()

    def recall(self) -> bool:
        """End the attempt and free the slot; False if there is nothing to end yet."""
        if self.on_recall is None or self._released:
            return False
        self.record(Outcome.NEUTRAL)  # it tells nothing of the deployment
        self.on_recall()
        self.release()
        return True

    def release(self) -> None:
        self._siblings.pop(self, None)
        super().release()


class ReservedSlot(Slot):
    """A slot of a reservation."""

    __slots__ = ("_lease",)

    def __init__(
        self,
        deployment: DeploymentGuard,
        lease: ReservedLease,
        started_at: float,
        on_release: Callable[[DeploymentGuard], None],
    ) -> None:
        super().__init__(deployment, Priority.INTERACTIVE, started_at, None, on_release)
        self.lease_epoch = lease.epoch
        self._lease = lease

    @property
    def pool(self) -> str:
        return f"{RESERVED}{self._lease.reservation}"

    @property
    def fenced(self) -> bool:
        return self.lease_epoch != self._lease.epoch

    def release(self) -> None:
        if self._released:
            return
        self.record(Outcome.NEUTRAL)
        self._released = True
        self._lease.in_flight -= 1
        assert self._lease.in_flight >= 0
        self._on_release(self._deployment)
