"""What has to be known of an endpoint before load: that it answers, and how it counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from prime_inference.bench.agents.answers import Answer, read_answer
from prime_inference.bench.agents.http_stream import Address, StreamClient
from prime_inference.bench.agents.sender import PATH
from prime_inference.bench.agents.vocabulary import (
    CalibrationFailed,
    Message,
    Vocabulary,
    calibrate,
)
from prime_inference.engines.mock.text import SYLLABLES

CALIBRATION_SECONDS = 120.0  # for a small prompt: a cold model on a laptop takes seconds
PROBE_WORDS = 12  # of an answer; a real model says none of the mock's words, let alone twelve


class EndpointRefused(RuntimeError):
    """The endpoint did not answer a first small request; the message holds what it said."""


class Endpoint:
    """Asks small requests. `extra` goes into every body, as it will under load."""

    def __init__(
        self, client: StreamClient, model: str, extra: Mapping[str, Any], seconds: float
    ) -> None:
        self._client = client
        self._model = model
        self._extra = dict(extra)
        self._seconds = seconds
        self.served_by: str | None = None

    async def count(self, messages: Sequence[Message]) -> int:
        """What the server counts for a prompt. Raises EndpointRefused, CalibrationFailed."""
        answer = await self.ask(messages, 1)
        if answer.prompt_tokens is None:
            raise CalibrationFailed("the endpoint tells no usage.prompt_tokens for a stream")
        return answer.prompt_tokens

    async def is_mock(self) -> bool:
        """Whether the answers are the mock engine's, whatever stands in front of it."""
        answer = await self.ask([{"role": "user", "content": "Say something."}], PROBE_WORDS)
        words = answer.text.split()
        return len(words) > PROBE_WORDS // 2 and all(
            len(w) == 4 and w[:2] in SYLLABLES and w[2:] in SYLLABLES for w in words
        )

    async def ask(self, messages: Sequence[Message], tokens: int) -> Answer:
        """Raises EndpointRefused."""
        body = {
            "model": self._model, "messages": messages, "max_tokens": tokens, "stream": True,
            "stream_options": {"include_usage": True}, **self._extra,
        }  # fmt: skip
        exchange = await self._client.post(PATH, msgspec.json.encode(body), seconds=self._seconds)
        if exchange.status != 200 or exchange.failure is not None:
            said = b"".join(exchange.bodies)[:500].decode("utf-8", "replace")
            raise EndpointRefused(f"{exchange.failure or exchange.status}: {said}")
        for name, value in exchange.headers:
            if name.lower() == b"server":
                self.served_by = value.decode("latin-1")
        answer = read_answer(exchange.times, exchange.bodies, keep_text=True)
        if answer.error is not None:
            raise EndpointRefused(answer.error)
        return answer


async def vocabulary_of(base_url: str, model: str, headers: bytes = b"") -> Vocabulary:
    """Words and costs of one endpoint. Raises EndpointRefused, CalibrationFailed, ValueError."""
    client = StreamClient(Address.parse(base_url), headers=headers)
    try:
        return await calibrate(Endpoint(client, model, {}, CALIBRATION_SECONDS).count)
    finally:
        client.close()
