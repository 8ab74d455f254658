"""Tasks that run beside the requests for as long as the process does."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from prime_inference.domain.backoff import HEALTHY_SECONDS, Backoff
from prime_inference.ports.clock import Clock

log = logging.getLogger(__name__)

CAUSE_CHARACTERS = 200  # of an exception that is shown; the log has it whole

Run = Callable[[], Coroutine[Any, Any, None]]
"""One run of a task: it ends by cancellation, or since there is nothing left to do."""


@dataclass(slots=True)
class _Failure:
    cause: str
    runs_since: float | None = None  # None: it waits to be started again


class Background:
    """Starts every task again that an unforeseen exception has ended.

    Such an exception is a defect, but what the task does for the requests must not end with
    it. The pauses are those of `domain.backoff`: they grow to half a minute.
    """

    def __init__(self, clock: Clock, backoff: Callable[[], Backoff] = Backoff) -> None:
        self._clock = clock
        self._backoff = backoff
        self._last: dict[str, _Failure] = {}
        self.failures: Counter[str] = Counter()  # by task, for metrics

    @property
    def failing(self) -> Mapping[str, str]:
        """Tasks that have failed and not run for a minute since, with the cause."""
        healthy_since = self._clock() - HEALTHY_SECONDS
        return {
            name: failure.cause
            for name, failure in self._last.items()
            if failure.runs_since is None or failure.runs_since > healthy_since
        }

    def start(self, name: str, run: Run) -> asyncio.Task[None]:
        """Run it until the task is cancelled. Its name stands in metrics and in the log."""
        self.failures[name] += 0  # so that the first failure is an increase
        return asyncio.get_running_loop().create_task(self.keep(name, run), name=name)

    async def keep(self, name: str, run: Run) -> None:
        """Run it until it ends by itself, or this is cancelled."""
        backoff = self._backoff()
        while True:
            began = self._clock()
            try:
                return await run()
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                self._failed(name, error)  # of something inside, that was not awaited right
            except Exception as error:  # a defect: see above
                self._failed(name, error)
                if _is_cancelled():  # a task group that fails swallows the cancellation
                    raise asyncio.CancelledError from error
            await asyncio.sleep(backoff.pause(self._clock() - began))
            self._last[name].runs_since = self._clock()

    def _failed(self, name: str, error: BaseException) -> None:
        self.failures[name] += 1
        self._last[name] = _Failure(_cause(error))
        log.critical("%s failed; it is started again", name, exc_info=error)


async def end(tasks: list[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _cause(error: BaseException) -> str:
    """On one line; of a group, its first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:CAUSE_CHARACTERS].replace("\n", " ")
