"""Requests at a steady rate over all gateways, through what a load balancer does and no more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from random import Random
from typing import Any

from prime_inference.bench.faults.client import MESSAGES, Answer, Client
from prime_inference.bench.faults.replica import Replica

END_SECONDS = 60.0  # the last answers have so long after the last request


class Balancer:
    """Gateways in turn. A refused connection is tried at the next one, and nothing else is.

    Each request has a connection of its own, so that a refusal is a refusal: on a kept
    connection nobody can tell a gateway that had gone from one that died with the request.
    """

    def __init__(self, gateways: Sequence[Replica], key: str) -> None:
        self._gateways = gateways
        self._next = 0
        self._client = Client(key, kept=0)
        self.refusals = 0

    async def ask(self, **options: Any) -> Answer:
        answer = Answer()
        for gateway in self._in_turn():
            answer = await self._client.ask(gateway.base_url, **options)
            answer.gateway = gateway.folder.name
            if not answer.refused:
                return answer
            self.refusals += 1
        return answer

    async def close(self) -> None:
        await self._client.close()

    def _in_turn(self) -> Iterator[Replica]:
        first = self._next
        self._next += 1
        for number in range(len(self._gateways)):
            yield self._gateways[(first + number) % len(self._gateways)]


class Traffic:
    """Answers to requests that arrive at random, `per_second` of them in the mean.

    `sessions`: each belongs to a conversation of its own, so all deployments have some.
    """

    def __init__(
        self, balancer: Balancer, per_second: float, random: Random, *, sessions: bool = False
    ) -> None:
        self._balancer = balancer
        self._per_second = per_second
        self._random = random
        self._sessions = sessions
        self._running: set[asyncio.Task[None]] = set()
        self.answers: list[Answer] = []

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            self.send()
            await asyncio.sleep(self._random.expovariate(self._per_second))

    def send(self, **options: Any) -> asyncio.Task[None]:
        """One request now; every fourth is not streamed."""
        options.setdefault("stream", self._random.random() < 0.75)
        options.setdefault("messages", MESSAGES)
        if self._sessions:
            options["session"] = f"{self._random.random()}"
        task = asyncio.create_task(self._one(options))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    @property
    def in_flight(self) -> int:
        return len(self._running)

    async def finish(self) -> None:
        """Return when every request has its answer; what has none by then is one with no end."""
        if self._running:
            await asyncio.wait(self._running, timeout=END_SECONDS)
        for task in list(self._running):
            task.cancel()
            self.answers.append(Answer(error="no end"))

    async def _one(self, options: dict[str, Any]) -> None:
        sent = time.monotonic()
        answer = await self._balancer.ask(**options)
        answer.sent = sent
        self.answers.append(answer)


@contextlib.asynccontextmanager
async def traffic(
    gateways: Sequence[Replica], per_second: float, seed: int = 1, *, sessions: bool = False
) -> AsyncIterator[Traffic]:
    """Traffic for the time of the block; afterwards all answers are in."""
    balancer = Balancer(gateways, gateways[0].key)
    flow = Traffic(balancer, per_second, Random(seed), sessions=sessions)
    running = asyncio.create_task(flow.run())
    try:
        yield flow
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await flow.finish()
        await balancer.close()
