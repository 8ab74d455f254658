"""A line in the log for every change of heart about where requests go."""

from __future__ import annotations

import asyncio
import logging

from prime_inference.ports.coordination import BreakerState
from prime_inference.reliability.decisions import BreakerChange
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import Runner
from prime_inference.routing.tool_calls import RankChange, ToolCallRanking

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # a lease lapses for seconds at least


class DecisionLog:
    """Breakers and ranks as they change; leases and the store as they are found every second."""

    def __init__(self, guard: Guard, runner: Runner, ranking: ToolCallRanking) -> None:
        self._guard = guard
        self._ranking = ranking
        self._runner = runner
        self._refusal: str | None = None
        self._degraded = False
        self._lapsed: set[str] = set()
        guard.decisions.on_breaker = self.breaker
        ranking.on_change = self.rank

    def breaker(self, change: BreakerChange) -> None:
        """One breaker has changed."""
        opened = change.after is not BreakerState.CLOSED
        log.log(
            logging.WARNING if opened else logging.INFO,
            "breaker of deployment %s: %s, it was %s%s",
            change.deployment,
            change.after,
            change.before,
            f" ({change.cause})" if opened else "",
        )

    def rank(self, change: RankChange) -> None:
        """A deployment's rank for requests with tools has changed."""
        log.log(
            logging.WARNING if change.behind else logging.INFO,
            "deployment %s is %s for requests with tools: %s of its answers with calls were wrong,"
            " %s of the best deployment's",
            change.deployment,
            "ranked behind the others" if change.behind else "ranked like the others again",
            _percent(change.rate),
            _percent(change.best),
        )

    async def watch(self) -> None:
        """Look again and again, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Note what has changed since the last look."""
        self._ranking.look()
        lapsed = {status.id for status in self._guard.status() if status.lease_lapsed}
        for name in sorted(lapsed - self._lapsed):
            log.warning("the lease of deployment %s has lapsed: it goes by safe capacity", name)
        for name in sorted(self._lapsed - lapsed):
            log.info("deployment %s has a lease again", name)
        self._lapsed = lapsed
        refusal = self._runner.refusal
        if refusal != self._refusal:
            if refusal is not None:
                log.error("the coordination store refuses: %s", refusal)
            else:
                log.info("the coordination store does not refuse any more")
        self._refusal = refusal
        degraded = self._guard.degraded
        if degraded is not self._degraded:
            log.log(
                logging.WARNING if degraded else logging.INFO,
                f"this replica goes by itself: the coordination store {self._why()}"
                if degraded
                else "the coordination store answers again",
            )
        self._degraded = degraded

    def _why(self) -> str:
        return "refuses" if self._refusal is not None else "does not answer"


def _percent(rate: float | None) -> str:
    return "too few to tell" if rate is None else f"{rate:.1%}"
