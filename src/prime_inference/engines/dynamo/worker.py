"""Serves Dynamo's endpoint `generate` from a local engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx

from prime_inference.engines.dynamo.completion import Unsupported, chunk_of, completion_body

log = logging.getLogger(__name__)

CONNECT_SECONDS = 5.0  # on loopback; the engine may be starting again


class Worker:
    """Answers requests of Dynamo's router. Close it.

    A handler that raises anything else than these makes Dynamo take the worker out, so what is
    wrong with a request becomes a finish reason of its own.
    """

    def __init__(self, completion_url: str, context_tokens: int) -> None:
        self._url = completion_url
        self._context_tokens = context_tokens
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)  # the frontend keeps the clocks
        self._client = httpx.AsyncClient(timeout=timeout, trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def generate(
        self, request: dict[str, Any], context: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Chunks of token ids; the last has the finish reason. Ends when Dynamo cancels.

        Dynamo finds the second parameter by its name.
        """
        try:
            body = completion_body(request, self._context_tokens)
        except Unsupported as error:
            yield {"token_ids": [], "finish_reason": f"error: {error}"}
            return
        cancelled = asyncio.ensure_future(context.async_killed_or_stopped())
        try:
            async with self._client.stream("POST", self._url, json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    said = (await answer.aread()).decode(errors="replace")
                    yield {"token_ids": [], "finish_reason": f"error: {said[:500]}"}
                    return
                async for line in _until(answer.aiter_lines(), cancelled):
                    chunk = chunk_of(line)
                    if chunk is not None:
                        yield chunk
        finally:
            cancelled.cancel()


async def _until(lines: AsyncIterator[str], cancelled: asyncio.Future[Any]) -> AsyncIterator[str]:
    """Lines until there are no more or Dynamo cancels; the engine stops when we hang up."""
    while True:
        line = asyncio.ensure_future(anext(lines))
        try:
            await asyncio.wait({line, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # a wait that is cancelled leaves what it waits for running
            line.cancel()
            raise
        if not line.done():
            line.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await line
            return
        try:
            yield line.result()
        except StopAsyncIteration:
            return
