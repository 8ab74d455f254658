"""What a streamed answer was, read after it has ended.

While an answer streams, its bytes are only kept with the times at which they came
(`http_stream`); a generator that parsed every token as it arrives would be late for the next.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

import msgspec

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.wire.sse import DONE, SseFramer


class ToolCall(msgspec.Struct):
    """A tool call as it was put together from its pieces; `arguments` is JSON text."""

    name: str
    arguments: str


class Answer(msgspec.Struct, kw_only=True):
    """Times are of the clock that the pieces carry; None for what never came.

    `events` counts events with content, `longest_gap` is seconds between two pieces after
    the first content. `error` is the text of an error event, or what was wrong with the
    bytes; `overflow` tells that it was a prompt too long.
    """

    first: float | None = None
    last: float | None = None
    events: int = 0
    longest_gap: float = 0.0
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    done: bool = False
    error: str | None = None
    text: str = ""
    tool_calls: list[ToolCall] = []


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    queue_time: float | None = None  # seconds, as Groq's API tells it


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


def read_answer(times: Sequence[float], bodies: Sequence[bytes], *, keep_text: bool) -> Answer:
    """Read a whole stream; never raises: what is wrong with it is in `error`."""
    answer = Answer(tool_calls=[])
    text: list[str] = []
    calls: dict[int, ToolCall] = {}
    first = last = -1
    try:
        for index, data in enumerate(_events(bodies)):
            if data == DONE:
                answer.done = True
                continue
            event = _decoder.decode(data)
            if _take(event, answer, text if keep_text else None, calls):
                last = index
                first = index if first < 0 else first
                answer.events += 1
    except UpstreamMalformed as error:
        answer.error = error.message
    except msgspec.DecodeError as error:
        answer.error = f"an event is no chunk of a chat completion: {error}"
    answer.text = "".join(text)
    answer.tool_calls = [calls[n] for n in sorted(calls)]
    if first >= 0:
        _time(answer, times, bodies, first, last)
    return answer


def _events(bodies: Sequence[bytes]) -> Iterator[bytes]:
    """Data of every whole event, in order."""
    framer = SseFramer()
    yield from framer.feed(b"".join(bodies))


def _take(
    event: _Event, answer: Answer, text: list[str] | None, calls: dict[int, ToolCall]
) -> bool:
    """Add one event to `answer`; whether it had content."""
    if event.usage is not None:
        _take_usage(event.usage, answer)
    if event.error is not None:
        answer.error = str(msgspec.json.encode(event.error), "utf-8")
        return False
    if not event.choices:
        return False
    choice = event.choices[0]
    if choice.finish_reason is not None:
        answer.finish = choice.finish_reason
    delta = choice.delta
    if delta is None:
        return False
    if delta.content and text is not None:
        text.append(delta.content)
    for piece in delta.tool_calls or ():
        call = calls.setdefault(piece.index, ToolCall("", ""))
        if piece.function is not None:
            call.name += piece.function.name or ""
            call.arguments += piece.function.arguments or ""
    return bool(delta.content or delta.tool_calls or delta.reasoning_content or delta.reasoning)


def _take_usage(usage: _Usage, answer: Answer) -> None:
    answer.prompt_tokens = usage.prompt_tokens
    answer.completion_tokens = usage.completion_tokens
    answer.queue_seconds = usage.queue_time
    if usage.prompt_tokens_details is not None:
        answer.cached_tokens = usage.prompt_tokens_details.cached_tokens


def _time(
    answer: Answer, times: Sequence[float], bodies: Sequence[bytes], first: int, last: int
) -> None:
    """An event has come when its last byte has; `first` and `last` are its index."""
    ends = _event_ends(bodies, last)
    pieces = list(accumulate(map(len, bodies)))
    at_first = bisect_left(pieces, ends[first])
    at_last = bisect_left(pieces, ends[last])
    answer.first, answer.last = times[at_first], times[at_last]
    gaps = (later - earlier for earlier, later in pairwise(times[at_first : at_last + 1]))
    answer.longest_gap = max(gaps, default=0.0)


def _event_ends(bodies: Sequence[bytes], last: int) -> list[int]:
    """Where in the body each event with data ends, up to event `last`."""
    whole = b"".join(bodies)
    if b"\r" in whole:
        return _event_ends_slowly(bodies)
    ends: list[int] = []
    end = 0
    while len(ends) <= last:
        start, end = end, whole.index(b"\n\n", end) + 2
        if b"data:" in whole[start:end] and SseFramer().feed(whole[start:end]):
            ends.append(end)
    return ends


def _event_ends_slowly(bodies: Sequence[bytes]) -> list[int]:
    """The same to the piece, for line ends other than LF."""
    framer = SseFramer()
    ends: list[int] = []
    offset = 0
    for body in bodies:
        offset += len(body)
        ends += [offset] * len(framer.feed(body))
    return ends
