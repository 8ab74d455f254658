"""The tokens of an answer begun elsewhere, asked of the engine that is to go on with it.

llama.cpp serves `/apply-template` and `/tokenize` beside its OpenAI API; its chat route does
the same two steps with a conversation before it writes.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed
from prime_inference.gateway.clocks import AttemptClocks, ClockLimits
from prime_inference.gateway.operations import Operation
from prime_inference.gateway.upstreams import Upstream
from prime_inference.wire.openai.said import Said

MAX_BYTES = 16 * 1024 * 1024  # a million tokens are 8 MB


class _Template(Struct):
    prompt: str


class _Tokens(Struct):
    tokens: list[int]


T = TypeVar("T", _Template, _Tokens)


class PromptTokens:
    """Asks llama.cpp."""

    def __init__(self, clocks: ClockLimits) -> None:
        self._clocks = clocks

    async def ids(
        self, upstream: Upstream, operation: Operation, said: Said, clocks: AttemptClocks
    ) -> list[int]:
        """Prompt and answer; by the answer's text where its tokens are not known exactly.

        Raises UpstreamFailure. Empty if the answer cannot be told by its text.
        """
        prompt: Any = None
        if operation.shape == "chat":
            template = await self._ask(
                upstream, "/apply-template", operation.content, _Template, clocks
            )
            prompt = template.prompt
        else:
            prompt = operation.content["prompt"]
            if isinstance(prompt, list) and not isinstance(prompt[0], int):
                (prompt,) = prompt  # of one choice there is one prompt
        if said.ids is not None:
            return [*await self._tokens(upstream, prompt, clocks), *said.ids]
        if said.reasoned:  # what was thought is not in the text
            return []
        if isinstance(prompt, str):
            return await self._tokens(upstream, prompt + said.text, clocks)
        return [*prompt, *await self._tokens(upstream, said.text, clocks, start=False)]

    async def _tokens(
        self, upstream: Upstream, prompt: Any, clocks: AttemptClocks, *, start: bool = True
    ) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        body = {"content": prompt, "add_special": start, "parse_special": True}
        return (await self._ask(upstream, "/tokenize", body, _Tokens, clocks)).tokens

    async def _ask(
        self, upstream: Upstream, path: str, body: Any, kind: type[T], clocks: AttemptClocks
    ) -> T:
        response = await upstream.root.fetch(
            "POST",
            path,
            msgspec.json.encode(body),
            connect_seconds=self._clocks.connect,
            watch=clocks.watch,
        )
        try:
            data = await response.read(MAX_BYTES)
        finally:
            response.close()
        if response.status != 200:
            raise UpstreamFailure(f"The model's engine failed (HTTP {response.status}).")
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, RecursionError):
            raise UpstreamMalformed("The engine's tokens are not what its API promises.") from None
