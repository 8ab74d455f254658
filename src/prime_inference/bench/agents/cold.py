"""The open-loop stream of cold arrivals: long prompts that nothing has sent before."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

from prime_inference.bench.agents.plan import Options, Point
from prime_inference.bench.agents.prompts import cold_messages
from prime_inference.bench.agents.sender import Planned, Sender
from prime_inference.bench.agents.vocabulary import MARKER_WORDS, Vocabulary


def arrivals(rate: float, burst: int, seconds: float, rng: random.Random) -> Iterator[float]:
    """Times in [0, seconds): Poisson at `rate` a second, or bursts of `burst` at rate / burst."""
    now = 0.0
    while rate > 0:
        now += rng.expovariate(rate / burst)
        if now >= seconds:
            return
        yield from [now] * burst


class ColdStream:
    """Sends at its times whatever the server does; `start` is the first of them."""

    def __init__(
        self, sender: Sender, vocabulary: Vocabulary, options: Options, point: Point, nonce: str
    ) -> None:
        self._sender = sender
        self._vocabulary = vocabulary
        self._options = options
        self._rate = point.cold_rate
        self._rng = random.Random(f"cold {point.seed}")
        # of its own: who gives up must not change what arrives
        self._cancels = random.Random(f"cold cancels {point.seed}")
        self._nonce = nonce

    async def run(self, start: float) -> None:
        """All arrivals of the profiling phase; returns when the last answer has ended."""
        options = self._options
        times = arrivals(self._rate, options.cold_burst, options.seconds, self._rng)
        async with asyncio.TaskGroup() as group:
            for number, time in enumerate(times):
                planned = self._planned(number, start + time)
                await asyncio.sleep(planned.due - self._sender.now)
                group.create_task(self._sender.send(planned))

    def _planned(self, number: int, due: float) -> Planned:
        least = self._vocabulary.first_user + MARKER_WORDS
        tokens = max(least, round(self._options.cold_input.draw(self._rng)))
        output = max(1, round(self._options.cold_output.draw(self._rng)))
        gives_up = self._cancels.random() < self._options.cancel_share
        key = f"{self._nonce} {number}"
        messages = cold_messages(self._vocabulary, key, tokens)
        return Planned(
            phase="profiling", kind="cold", session=f"cold-{number}", play=-1, turn=0,
            body=self._sender.body(messages, output), intended=due, due=due,
            asked_tokens=output, input_tokens=tokens, hit_tokens=0,
            tolerance=self._vocabulary.first_user + MARKER_WORDS,
            cancel_after=max(1, output // 2) if gives_up else None,
        )  # fmt: skip
