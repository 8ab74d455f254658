"""Calling lent slots back: which requests have to go, and when (docs/reservations.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prime_inference.reliability.slots import Priority

if TYPE_CHECKING:
    from prime_inference.reliability.deployment import DeploymentGuard
    from prime_inference.reliability.reserved_slots import SharedSlot

BEGUN_GRACE_S = 3.0
"""An answer that has begun may end by itself for so long. The owner waits for it, the time of
a renewal (a third of a lease) and that of two asks: together less than a lease of 10 s."""


@dataclass(slots=True)
class Recall:
    """What one deployment's lender wants back on this replica."""

    since: float = math.inf  # the store has asked for slots since then
    ask_at: float = math.inf  # when it is asked whether answers that have begun have to go

    def wait(self, member: DeploymentGuard, now: float) -> None:
        """Once the grace is over, ask again: nothing that has begun ends on old news."""
        if now >= self.ask_at:
            self.ask_at = math.inf
            member.lease.confirm(now)

    def carry_out(self, member: DeploymentGuard, now: float) -> int:
        """The store has answered: end as many requests as it said; how many those were."""
        target = member.lease.recall_to
        if target is None:
            self.since = self.ask_at = math.inf
            return 0
        self.since = min(self.since, now)
        grace_is_over = now >= self.since + BEGUN_GRACE_S
        too_many, ended = member.in_flight - target, 0
        for slot in sorted(member.shared or (), key=_goes_first):
            if too_many <= 0 or (slot.began and not grace_is_over):
                break
            if slot.recall():
                too_many -= 1
                ended += 1
                member.lease.confirm(now)
        if too_many > 0 and not grace_is_over:
            self.ask_at = self.since + BEGUN_GRACE_S
        return ended


def _goes_first(slot: SharedSlot) -> tuple[bool, bool, float]:
    """Before its first token, batch before interactive, the youngest first: least is lost."""
    return slot.began, slot.priority is not Priority.BATCH, -slot.started_at
