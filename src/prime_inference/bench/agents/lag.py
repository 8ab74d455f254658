"""How late the generator itself is."""

from __future__ import annotations

import asyncio

from prime_inference.bench.agents.http_stream import clock

INTERVAL = 0.005  # seconds between probes; half of the default bound


class LagProbe:
    """Samples how long after its time the event loop comes back, for as long as it is open."""

    def __init__(self) -> None:
        self.samples: list[float] = []
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LagProbe:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            due = clock() + INTERVAL
            await asyncio.sleep(INTERVAL)
            self.samples.append(max(0.0, clock() - due))
