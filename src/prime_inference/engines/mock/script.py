"""An answer as it goes over the wire: steps of bytes in time, and how it ends.

Everything here is pure; `exchange` plays the script on a connection.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec

from prime_inference.engines.mock.behaviour import HUGE_EVENT_BYTES, PLAIN, Behaviour
from prime_inference.engines.mock.render import Rendered

STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
HTML_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
GARBAGE = b"\x00\xff\xfe{]garbage\x80" * 8
NOT_HTTP = b"SSH-2.0-OpenSSH_9.2p1\r\n"


class Ending(enum.Enum):
    """What happens once every step is written."""

    KEEP = "keep"  # the answer is complete, the connection serves on
    CLOSE = "close"
    RESET = "reset"
    HANG = "hang"  # open and silent


@dataclass(frozen=True, slots=True)
class Step:
    """Bytes to write `after` seconds; they bring the answer to `tokens` tokens."""

    after: float
    data: bytes
    tokens: int = 0


@dataclass(slots=True)
class Script:
    """Steps in order, then the ending after `rest` seconds; `outcome` says it in a word."""

    steps: list[Step] = field(default_factory=list)
    ending: Ending = Ending.KEEP
    rest: float = 0.0
    outcome: str = "complete"
    status: int = 200


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds to the first token and between tokens."""

    first: float
    gap: float


def json_answer(status: int, body: bytes, headers: Iterable[tuple[str, str]] = ()) -> bytes:
    """A whole HTTP answer with a JSON body."""
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"{extra}content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """OpenAI's error object."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def refusal(behaviour: Behaviour, *, prefilled: bool, context_tokens: int) -> Script | None:
    """What is sent instead of an answer, if the behaviour has such a thing."""
    if behaviour.reset:
        return Script(ending=Ending.RESET, outcome="reset")
    if behaviour.close:
        return Script(ending=Ending.CLOSE, outcome="closed")
    if behaviour.silence:
        return Script(ending=Ending.HANG, outcome="silent")
    if behaviour.not_http:
        return Script([Step(0, NOT_HTTP)], Ending.CLOSE, outcome="not http")
    if (body := _bad_body(behaviour)) is not None:
        return body
    if (refused := _refused(behaviour, prefilled, context_tokens)) is not None:
        status, error = refused
        headers = []
        if behaviour.retry_after is not None:
            headers.append(("retry-after", str(behaviour.retry_after)))
        answer = json_answer(status, error, headers)
        return Script([Step(behaviour.slow_head or 0, answer)], outcome="refused", status=status)
    return None


def _bad_body(behaviour: Behaviour) -> Script | None:
    if not (behaviour.html or behaviour.garbage):
        return None
    status = behaviour.status or 200
    kind = "text/html" if behaviour.html else "application/json"
    body = HTML_PAGE if behaviour.html else GARBAGE
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return Script([Step(0, head.encode() + body)], outcome="bad body", status=status)


def _refused(
    behaviour: Behaviour, prefilled: bool, context_tokens: int
) -> tuple[int, bytes] | None:
    if behaviour.context_length:
        return 400, context_length_error(context_tokens, context_tokens + 1)
    if behaviour.content_filter:
        message = "The prompt was filtered: it triggered the content management policy."
        return 400, error_body(message, "invalid_request_error", "content_filter", "messages")
    if behaviour.refuse_prefill and prefilled:
        message = "The last message must not be from the assistant: prefill is not supported."
        return 400, error_body(message, "invalid_request_error", "invalid_value", "messages")
    if behaviour.status is not None:
        phrase = HTTPStatus(behaviour.status).phrase
        return behaviour.status, error_body(f"{phrase}.", "mock_error", behaviour.status)
    return None


def context_length_error(limit: int, tokens: int) -> bytes:
    """vLLM's refusal of a prompt that is too long."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your request has"
        f" {tokens} input tokens. Please reduce the length of the input messages."
    )
    return error_body(message, "BadRequestError", 400, "input_tokens")


# -- answers


def whole_script(rendered: Rendered, opening: bytes, behaviour: Behaviour, pace: Pace) -> Script:
    """A whole answer, sent when its last token would be there."""
    last = pace.first + pace.gap * max(0, rendered.tokens - 1)
    body = opening + rendered.body
    if behaviour is PLAIN:
        return Script([Step(last, JSON_HEAD % len(body) + body, rendered.tokens)])
    early = None if behaviour.end_after is not None else _early_end(behaviour)
    if early is not None and early[0] <= rendered.tokens:
        after, script = early
        script.rest = (behaviour.slow_head or 0) + pace.first + pace.gap * max(0, after - 1)
        if behaviour.error_after is not None:
            script.steps = [Step(script.rest, json_answer(500, engine_error()))]
            script.rest, script.status = 0, 500
        return script
    ends_early = behaviour.end_after is not None and behaviour.end_after <= rendered.tokens
    if behaviour.malformed_at is not None or ends_early:
        body = body[: len(body) // 2]
    if behaviour.huge_at is not None:
        body = body[:-1] + b" " * HUGE_EVENT_BYTES + b"}"
    if behaviour.stall_after is not None:
        last += behaviour.stall or 0
    stated = len(body) + (behaviour.length_plus or 0) - (behaviour.length_minus or 0)
    step = Step(last + (behaviour.slow_head or 0), JSON_HEAD % stated + body, rendered.tokens)
    closes = behaviour.close_after or stated > len(body)
    return Script([step], Ending.CLOSE if closes else Ending.KEEP)


def engine_error() -> bytes:
    """What an engine that died in mid-answer says."""
    return error_body("The engine died.", "InternalServerError", 500)


def stream_script(rendered: Rendered, opening: bytes, behaviour: Behaviour, pace: Pace) -> Script:
    """A streamed answer: head, tokens at their pace, finish, usage, [DONE]."""
    if behaviour is PLAIN:
        return Script(_plain_steps(rendered, opening, pace))
    wire = _Wire(behaviour, opening)
    steps = [Step(behaviour.slow_head or 0, STREAM_HEAD)]
    early = _early_end(behaviour)
    limit = early[0] if early is not None else len(rendered.frames)
    steps += _token_steps(rendered.frames[:limit], rendered.lead, wire, behaviour, pace)
    if early is not None and limit <= len(rendered.frames):
        script = early[1]
        script.steps = steps
        script.rest = pace.gap if limit else pace.first
        if behaviour.error_after is not None:
            data = wire.raw(engine_error()) + wire.raw(b"[DONE]") + LAST_CHUNK
            steps.append(Step(script.rest, data, limit))
        elif behaviour.end_after is not None:
            steps.append(Step(script.rest, LAST_CHUNK, limit))
        return script
    steps.append(Step(0, b"".join(_tail(rendered, wire, behaviour)), len(rendered.frames)))
    if behaviour.no_done:
        return Script(steps, Ending.HANG, outcome="not ended")
    return Script(steps, Ending.CLOSE if behaviour.close_after else Ending.KEEP)


def _plain_steps(rendered: Rendered, opening: bytes, pace: Pace) -> list[Step]:
    """The hot path of the benchmark: no faults, one event in one HTTP chunk."""
    start = b"data: " + opening
    fixed = len(start) + 2
    frames = [
        b"".join([b"%x\r\n%b%b\n\n\r\n" % (fixed + len(rest), start, rest) for rest in events])
        for events in (rendered.lead, *rendered.frames, rendered.finish)
    ]
    steps = [Step(0, STREAM_HEAD)]
    if rendered.frames:
        steps.append(Step(pace.first, frames[0] + frames[1], 1))
        steps += [Step(pace.gap, data, k) for k, data in enumerate(frames[2:-1], 2)]
    usage = rendered.usage
    last = b"" if usage is None else b"%x\r\n%b%b\n\n\r\n" % (fixed + len(usage), start, usage)
    done = b"e\r\ndata: [DONE]\n\n\r\n" + LAST_CHUNK
    steps.append(Step(0, frames[-1] + last + done, len(rendered.frames)))
    return steps


def _early_end(behaviour: Behaviour) -> tuple[int, Script] | None:
    """After how many tokens the answer ends early, and how."""
    if behaviour.cut_after is not None:
        return behaviour.cut_after, Script(ending=Ending.CLOSE, outcome="cut")
    if behaviour.reset_after is not None:
        return behaviour.reset_after, Script(ending=Ending.RESET, outcome="reset")
    if behaviour.end_after is not None:
        return behaviour.end_after, Script(outcome="ended early")
    if behaviour.error_after is not None:
        return behaviour.error_after, Script(outcome="error")
    if behaviour.stall_after is not None and behaviour.stall is None:
        return behaviour.stall_after, Script(ending=Ending.HANG, outcome="stalled")
    return None


def _token_steps(
    frames: Sequence[Sequence[bytes]],
    lead: Sequence[bytes],
    wire: _Wire,
    behaviour: Behaviour,
    pace: Pace,
) -> Iterator[Step]:
    for k, events in enumerate(frames, 1):
        after = pace.gap if k > 1 else pace.first
        if behaviour.stall_after == k - 1:
            after += behaviour.stall or 0
        data = b"".join(wire.event(rest) for rest in lead) if k == 1 else b""
        if k == behaviour.malformed_at:
            data += b"".join(wire.raw((wire.opening + rest)[: -len(rest) // 2]) for rest in events)
        elif k == behaviour.huge_at:
            data += b"".join(wire.event(b'"pad":"%b",' % _padding() + rest) for rest in events)
        else:
            data += b"".join(wire.event(rest) for rest in events)
        yield Step(after, data, k)


def _padding() -> bytes:
    return b"x" * HUGE_EVENT_BYTES


def _tail(rendered: Rendered, wire: _Wire, behaviour: Behaviour) -> Iterator[bytes]:
    for rest in rendered.finish:
        yield wire.event(rest)
    if rendered.usage is not None:
        yield wire.event(rendered.usage)
    if not (behaviour.no_done or behaviour.end_without_done):
        yield wire.raw(b"[DONE]")
    if not behaviour.no_done:
        yield LAST_CHUNK


class _Wire:
    """Events as bytes of a chunked body, in the line ends and chunk sizes asked for."""

    def __init__(self, behaviour: Behaviour, opening: bytes) -> None:
        self.opening = opening
        self._line_end = b"\r\n" if behaviour.crlf else b"\r" if behaviour.cr else b"\n"
        self._comment = b": still here" + self._line_end * 2 if behaviour.comments else b""
        self._chunk = behaviour.chunks

    def event(self, rest: bytes) -> bytes:
        """The event whose JSON is the opening and `rest`."""
        return self.raw(self.opening + rest)

    def raw(self, data: bytes) -> bytes:
        """An event with this data."""
        event = b"%bdata: %b%b" % (self._comment, data, self._line_end * 2)
        size = self._chunk or len(event)
        pieces = [event[i : i + size] for i in range(0, len(event), size)]
        return b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])
