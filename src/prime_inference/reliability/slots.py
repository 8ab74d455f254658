"""Slots of a deployment: what a request holds while it runs, or why it got none."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from prime_inference.domain.errors import CapacityExhausted, ModelDrained
from prime_inference.domain.pools import FLEX, SERVERLESS
from prime_inference.reliability.outcome import Outcome

if TYPE_CHECKING:
    from prime_inference.reliability.breaker import Ticket
    from prime_inference.reliability.deployment import DeploymentGuard


class Priority(enum.IntEnum):
    """Who goes first."""

    INTERACTIVE = 0
    BATCH = 1


class Reason(enum.StrEnum):
    """Why there was no slot."""

    FULL = "full"  # every slot that this replica may fill is taken
    GONE = "gone"  # there is no such deployment any more
    NOT_WORTH_WAITING = "not_worth_waiting"  # it would take longer than a Retry-After
    WAITED = "waited"  # the expected slot did not come
    DRAINED = "drained"  # no deployment that could serve it takes requests


@dataclass(frozen=True, slots=True)
class Refusal:
    """No slot now. `retry_after_s` is when one is expected."""

    reason: Reason
    retry_after_s: float

    def error(self, model: str) -> CapacityExhausted:
        """What the client is told; nothing of when to come again, where nobody knows."""
        if self.reason is Reason.DRAINED:
            return ModelDrained(
                f"Every deployment of {model} that could serve this request is drained.",
                details={"reason": self.reason.value},
            )
        return CapacityExhausted(
            f"{model} is at capacity. Try again shortly.",
            retry_after=max(1, math.ceil(self.retry_after_s)),
            details={"reason": self.reason.value},
        )


class Slot:
    """Room for one request. Give it back exactly once, whatever happens: `with slot: ...`.

    `release` is a plain call: a cancelled task cannot be interrupted in it.
    """

    __slots__ = (
        "_deployment", "_on_release", "_recorded", "_released", "_signs_of_life",
        "breaker_generation", "lease_epoch", "priority", "started_at", "ticket",
    )  # fmt: skip

    def __init__(
        self,
        deployment: DeploymentGuard,
        priority: Priority,
        started_at: float,
        ticket: Ticket | None,
        on_release: Callable[[DeploymentGuard], None],
    ) -> None:
        self._deployment = deployment
        self._on_release = on_release
        self._released = False
        self._recorded = False
        self._signs_of_life = deployment.signs_of_life
        self.priority = priority
        self.started_at = started_at
        self.ticket = ticket
        self.lease_epoch = deployment.lease.epoch
        self.breaker_generation = deployment.breaker.generation

    @property
    def deployment(self) -> str:
        """Id of the deployment it belongs to."""
        return self._deployment.id

    @property
    def pool(self) -> str:
        """Whose slot it is, as events and bills name it."""
        return FLEX if self.priority is Priority.BATCH else SERVERLESS

    @property
    def fenced(self) -> bool:
        """Whether the lease it was admitted under has ended since: others may hold its place."""
        return self.lease_epoch != self._deployment.lease.epoch

    @property
    def has_seen_life(self) -> bool:
        """Whether the deployment has begun an answer, to whomever, since this slot was taken."""
        return self._deployment.signs_of_life > self._signs_of_life

    def when_recalled(self, end: Callable[[], None]) -> None:
        """How to end the attempt that runs on it; such a slot is nobody else's, and stays."""

    def first_token(self) -> None:
        """The first token arrived."""
        self._deployment.first_token_arrived(self)

    def whole_answer(self) -> None:
        """A whole answer has come, as a hedge of whole answers wants to know."""
        self._deployment.was_as_late(self, whole=True)

    def late(self, *, whole: bool) -> None:
        """Another deployment was faster: this one is at least as slow as it has been so far."""
        self._deployment.was_as_late(self, whole=whole)

    def record(self, outcome: Outcome) -> None:
        """How the attempt ended; only the first call counts."""
        if not self._recorded:
            self._recorded = True
            self._deployment.attempt_ended(self, outcome)

    def release(self) -> None:
        """Give the slot back; further calls do nothing."""
        if self._released:
            return
        self.record(Outcome.NEUTRAL)
        self._released = True
        self._deployment.give_back(self)
        self._on_release(self._deployment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()
