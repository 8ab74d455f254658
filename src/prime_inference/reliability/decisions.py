"""What a guard has decided since it began, counted; and who is told of changes at once."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from prime_inference.ports.coordination import BreakerState, Cause
from prime_inference.reliability.slots import Reason


class Retry(enum.StrEnum):
    """What the budget said to one more attempt."""

    FREE = "free"  # off an ejected deployment
    PAID = "paid"
    DENIED = "denied"


class Wait(enum.StrEnum):
    """How a place in the line for a slot ended, or that there was none."""

    SERVED = "served"
    EXPIRED = "expired"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BreakerChange:
    """A breaker has another state than before, by our own evidence or the store's word."""

    deployment: str
    before: BreakerState
    after: BreakerState
    cause: Cause


class Decisions:
    """Counters that only grow. An admitted request touches none of them."""

    __slots__ = ("breakers", "hedges", "moves", "on_breaker", "refusals", "retries", "waits")

    def __init__(self) -> None:
        self.breakers: Counter[tuple[str, BreakerState, Cause]] = Counter()  # by state entered
        self.refusals: Counter[tuple[str, Reason]] = Counter()  # by model
        self.retries: Counter[tuple[str, Retry]] = Counter()  # by model
        self.hedges: Counter[tuple[str, bool]] = Counter()  # by model, and whether allowed
        self.moves: Counter[str] = Counter()  # requests that left a deployment found down
        self.waits: Counter[tuple[str, Wait]] = Counter()  # by model
        self.on_breaker: Callable[[BreakerChange], None] = _nobody

    def breaker_changed(self, change: BreakerChange) -> None:
        self.breakers[change.deployment, change.after, change.cause] += 1
        self.on_breaker(change)


def _nobody(change: BreakerChange) -> None:
    """Nobody listens."""
