"""A client that believes nothing: it keeps what it was sent and how it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

MODEL = "acme/echo-1"
PROMPT = "Explain in sixty words why a gateway earns trust only when what is behind it breaks."
MESSAGES = [{"role": "user", "content": PROMPT}]
CLIENT_SECONDS = 130.0  # Failover Bench's longest wait for one call


@dataclass
class Answer:
    """One answer as a client saw it; times in seconds since the request."""

    status: int = 0  # 0: no HTTP answer at all
    text: str = ""
    finish: str = ""
    error: str = ""  # the server's words, or how the connection failed
    done: bool = False  # ended by [DONE], or by the end of a whole JSON answer
    model: str = ""
    usage: dict[str, Any] | None = None
    retry_after: float | None = None
    refused: bool = False  # no connection to the gateway: it has seen nothing
    first: float = 0.0
    seconds: float = 0.0
    longest_gap: float = 0.0  # between two pieces of content
    gateway: str = ""  # which one was asked last
    sent: float = 0.0  # monotonic clock
    ended: float = 0.0

    @property
    def success(self) -> bool:
        """What an SDK would hand to its caller as an answer, complete or not."""
        return self.status == 200 and not self.error

    def outcome(self, expected: str) -> str:
        """complete; error (a clean one); TRUNCATED or WRONG TEXT if a success is neither."""
        if not self.success:
            return "error" if expected.startswith(self.text) else "WRONG TEXT"
        if self.text == expected and self.done and self.finish:
            return "complete"
        return "TRUNCATED" if expected.startswith(self.text) else "WRONG TEXT"


class Client:
    """Asks gateways as an SDK does; `kept` connections are used again."""

    def __init__(self, key: str, *, kept: int = 64) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=kept)
        self._http = httpx.AsyncClient(
            trust_env=False,
            limits=limits,
            timeout=httpx.Timeout(CLIENT_SECONDS, connect=5.0),
            headers={"authorization": f"Bearer {key}"},
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        base_url: str,
        messages: Sequence[dict[str, Any]] = MESSAGES,
        *,
        stream: bool = True,
        max_tokens: int | None = None,
        session: str = "",
    ) -> Answer:
        """One request, never repeated; `session` names its conversation."""
        body: dict[str, Any] = {"model": MODEL, "messages": list(messages)}
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        if session:
            body["prompt_cache_key"] = session
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        answer = Answer()
        began = time.perf_counter()
        try:
            url = f"{base_url}/chat/completions"
            async with self._http.stream("POST", url, json=body) as response:
                answer.status = response.status_code
                retry_after = response.headers.get("retry-after")
                answer.retry_after = float(retry_after) if retry_after else None
                if response.status_code != 200 or not stream:
                    _read_whole(answer, await response.aread())
                else:
                    await _read_stream(answer, response, began)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            answer.refused = True
            answer.error = f"no connection: {error}"
        except httpx.HTTPError as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.seconds = time.perf_counter() - began
        answer.ended = time.monotonic()
        return answer


def _read_whole(answer: Answer, data: bytes) -> None:
    try:
        body = json.loads(data)
        if "error" in body:
            answer.error = str(body["error"].get("message") or body["error"])
            return
        choice = body["choices"][0]
        answer.text, answer.finish = choice["message"]["content"], choice["finish_reason"]
        answer.model, answer.usage, answer.done = body["model"], body.get("usage"), True
    except (ValueError, KeyError, IndexError, TypeError) as error:
        answer.error = f"not an answer: {error!r} in {data[:80]!r}"


async def _read_stream(answer: Answer, response: httpx.Response, began: float) -> None:
    last = began
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            answer.done = True
            continue
        event = json.loads(data)
        if event.get("error"):
            answer.error = str(event["error"].get("message") or event["error"])
            continue
        answer.model = event["model"]
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            answer.finish = choice.get("finish_reason") or answer.finish
            if piece := choice["delta"].get("content"):
                now = time.perf_counter()
                if not answer.text:
                    answer.first = now - began
                else:
                    answer.longest_gap = max(answer.longest_gap, now - last)
                answer.text += piece
                last = now
