"""From one planned request to its record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from prime_inference.bench.agents.answers import Answer, read_answer
from prime_inference.bench.agents.http_stream import Exchange, StreamClient, clock
from prime_inference.bench.agents.idle_cap import IdleCap
from prime_inference.bench.agents.records import OK, OVERFLOW, UNFINISHED, Kind, Phase, Record
from prime_inference.bench.agents.tool_calls import Tools

PATH = "/chat/completions"
EVENTS_SLACK = 1  # events with content beyond the tokens billed: one for a flushed remainder


class Planned(msgspec.Struct, kw_only=True):
    """A request that is ready to go; `body` is the whole JSON document.

    `tolerance` is by how many tokens a cache may hold more than the plan knows of; times are
    seconds since the point began.
    """

    phase: Phase
    kind: Kind
    session: str
    play: int
    turn: int
    body: bytes
    intended: float
    due: float
    asked_tokens: int
    input_tokens: int
    headers: bytes = b""
    hit_tokens: int | None = None
    tolerance: int = 0
    wait: float = 0.0
    last_turn: bool = False
    cancel_after: int | None = None


class Sender:
    """Sends to one endpoint and hands every record on.

    `extra` goes into each body; `seconds` is the longest a request may take.
    """

    def __init__(
        self, client: StreamClient, model: str, sink: Callable[[Record], None], *,
        point: int, origin: float, seconds: float, extra: Mapping[str, Any] | None = None,
        tools: Tools | None = None, keep_text: bool = False, idle_cap: float | None = None,
    ) -> None:  # fmt: skip
        self._client = client
        self._model = model
        self._sink = sink
        self._point = point
        self._origin = origin
        self._seconds = seconds
        self._extra = dict(extra or {})
        self._tools = tools
        self._keep_text = keep_text or tools is not None
        self.idle = IdleCap(idle_cap, lambda: self.now)

    @property
    def now(self) -> float:
        """Seconds since the point began."""
        return clock() - self._origin

    def body(self, messages: Sequence[Mapping[str, Any]], tokens: int) -> bytes:
        """The JSON of a streamed chat completion."""
        document = {
            "model": self._model,
            "messages": messages,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        if self._tools is not None:
            document["tools"] = self._tools.definitions
        return msgspec.json.encode(document)

    async def send(self, planned: Planned) -> tuple[Record, str]:
        """Send it now; the record, and the answer's text if it is kept.

        Cancelling the wait records it as unfinished.
        """
        started = self.now
        self.idle.began()
        try:
            exchange = await self._client.post(
                PATH, planned.body, headers=planned.headers, seconds=self._seconds,
                cancel_after=planned.cancel_after,
            )  # fmt: skip
        except asyncio.CancelledError:
            self._sink(self._base(planned, started, self.now, UNFINISHED))
            raise
        finally:
            self.idle.ended()
        record, text = self._record(planned, exchange)
        self._sink(record)
        return record, text

    def _base(self, planned: Planned, sent: float, end: float, outcome: str) -> Record:
        return Record(
            point=self._point,
            phase=planned.phase,
            kind=planned.kind,
            session=planned.session,
            play=planned.play,
            turn=planned.turn,
            intended=_rounded(planned.intended),
            due=_rounded(planned.due),
            sent=_rounded(sent),
            end=_rounded(end),
            outcome=outcome,
            input_tokens=planned.input_tokens,
            asked_tokens=planned.asked_tokens,
            hit_tokens=planned.hit_tokens,
            wait=_rounded(planned.wait),
            last_turn=planned.last_turn,
        )

    def _record(self, planned: Planned, exchange: Exchange) -> tuple[Record, str]:
        sent, end = exchange.sent - self._origin, exchange.end - self._origin
        if exchange.status != 200:
            record = self._base(planned, sent, end, _refusal(exchange))
            record.detail = b"".join(exchange.bodies)[:200].decode("utf-8", "replace")
            return record, ""
        answer = read_answer(exchange.times, exchange.bodies, keep_text=self._keep_text)
        record = self._base(planned, sent, end, _outcome(exchange, answer))
        record.detail = (answer.error or "")[:200]
        self._take(record, answer, planned)
        return record, answer.text

    def _take(self, record: Record, answer: Answer, planned: Planned) -> None:
        if answer.first is not None and answer.last is not None:
            record.first = _rounded(answer.first - self._origin)
            record.last = _rounded(answer.last - self._origin)
        record.events = answer.events
        record.longest_gap = _rounded(answer.longest_gap)
        record.finish = answer.finish
        record.prompt_tokens = answer.prompt_tokens
        record.completion_tokens = answer.completion_tokens
        record.cached_tokens = answer.cached_tokens
        record.queue_seconds = answer.queue_seconds
        record.calls = len(answer.tool_calls)
        if self._tools is not None:
            record.invalid_calls = self._tools.invalid(answer.tool_calls)
        judge(record, planned.tolerance)


def judge(record: Record, tolerance: int) -> None:
    """Set what the counts of a record say against each other."""
    record.truncated = record.finish == "length" and record.osl < record.asked_tokens
    planned, told = record.input_tokens, record.prompt_tokens
    record.prompt_mismatch = bool(planned) and told is not None and told != planned
    output = record.completion_tokens
    record.usage_doubtful = output is not None and (
        record.events > output + EVENTS_SLACK
        or output > record.asked_tokens
        or (output > 1 and record.events == 0 and record.ok)
    )
    hit, cached = record.hit_tokens, record.cached_tokens
    record.impossible_hit = cached is not None and (
        (hit is not None and cached > hit + tolerance)
        or (told is not None and cached > told)  # known without a plan: of a trace of texts
        or cached < 0
    )


def _refusal(exchange: Exchange) -> str:
    if exchange.failure is not None:
        return exchange.failure
    text = b"".join(exchange.bodies).lower()
    if exchange.status in (400, 413) and b"context" in text:
        return OVERFLOW
    return f"http_{exchange.status}"


def _outcome(exchange: Exchange, answer: Answer) -> str:
    if exchange.failure is not None:
        return exchange.failure
    if answer.error is not None:
        return "error_event"
    return OK if answer.finish is not None else "cut"


def _rounded(seconds: float) -> float:
    """To the microsecond: what a clock of a shared machine can be trusted with."""
    return round(seconds, 6)
