"""Legal chat answers of any shape, as an upstream streams them, for the tests of dialects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamCut
from prime_inference.domain.usage import Usage
from prime_inference.gateway.dialect_reply import DialectReply, Translation
from prime_inference.wire.http import Fields, HeaderLines
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.errors import error_object
from prime_inference.wire.openai.stream import AnswerStream
from prime_inference.wire.openai.whole import rebuild_answer

patient = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""For machines that have other work: time says nothing about what is tested."""

TEXT = st.text(st.characters(codec="utf-8") | st.sampled_from('<>&;"\\\n '), min_size=1)
VALUES = st.recursive(st.none() | st.booleans() | st.integers() | TEXT, st.lists, max_leaves=4)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
KINDS = ("reasoning_content", "content", "refusal")


@dataclass
class Recorded:
    """A reply that keeps what is written to it. Implements `wire.http.Reply`."""

    status: int = 0
    head: bytes = b""
    data: bytes = b""
    ended: bool = False

    @property
    def started(self) -> bool:
        return self.status > 0

    def send(self, status: int, headers: Fields, body: bytes) -> None:
        self.start(status, headers)
        self.write(body)
        self.end()

    def start(self, status: int, headers: Fields) -> None:
        assert not self.started
        assert isinstance(headers, bytes)
        self.status, self.head = status, headers

    def write(self, data: bytes) -> None:
        assert self.started
        assert not self.ended
        self.data += data

    def end(self) -> None:
        assert not self.ended
        self.ended = True

    def abort(self) -> None:
        self.ended = True

    @property
    def server_stops(self) -> bool:
        return False

    @property
    def congested(self) -> bool:
        return False

    async def drained(self) -> None:
        pass

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and data of the events written."""
        found = []
        for block in self.data.decode().split("\n\n")[:-1]:
            if block.startswith(":"):
                continue
            name, data = block.split("\n")
            assert name.startswith("event: ")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
        return found


@dataclass
class Streamed:
    """An answer in pieces: deltas in order, and how it ends."""

    deltas: list[dict[str, Any]]
    finish: str
    usage: Usage | None

    def events(self) -> list[bytes]:
        """What the upstream sends."""
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta}]} for delta in self.deltas
        ]
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish}]})
        if self.usage is not None:
            counts = {
                "prompt_tokens": self.usage.prompt_tokens,
                "completion_tokens": self.usage.completion_tokens,
                "prompt_tokens_details": {"cached_tokens": self.usage.cached_tokens},
            }
            chunks.append({"choices": [], "usage": counts})
        return [json.dumps(chunk).encode() for chunk in chunks]

    def said(self, kind: str) -> str:
        return "".join(delta.get(kind, "") for delta in self.deltas)

    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of each call, as a client is told them: a call that another one
        follows was not cut, and is one without arguments where none came."""
        found: list[list[str]] = []
        for delta in self.deltas:
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(found):
                    found.append([call["id"], call["function"]["name"], ""])
                found[call["index"]][2] += call["function"]["arguments"]
        for call in found[:-1]:
            call[2] = call[2] or "{}"
        return [(one, two, three) for one, two, three in found]


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    """A text cut somewhere, or nowhere."""
    cuts = draw(st.lists(st.integers(0, len(text)), max_size=3).map(sorted))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def answers(draw: st.DrawFn, *, in_order: bool = False) -> Streamed:
    """Any legal answer; `in_order`: reasoning, then text, then a refusal, then calls."""
    runs: list[list[dict[str, Any]]] = []
    for kind in KINDS:
        if draw(st.booleans()):
            cut = draw(pieces(draw(TEXT)))
            runs.append([{kind: piece} for piece in cut])
    calls = [draw(pieces(draw(ARGUMENTS))) for _ in range(draw(st.integers(0, 3)))]
    runs += [_call_deltas(index, cut) for index, cut in enumerate(calls)]
    if in_order:
        deltas = [delta for run in runs for delta in run]
    else:
        deltas = draw(_interleaved(runs, len(calls)))
    finish = draw(st.sampled_from(["stop", "length", "content_filter"]))
    if finish == "length":  # cut anywhere
        deltas = deltas[: draw(st.integers(0, len(deltas)))]
    if finish == "stop" and calls:
        finish = "tool_calls"
    usage = draw(st.none() | st.builds(Usage, st.integers(9, 99), st.integers(1, 99),
                                       st.integers(0, 9)))  # fmt: skip
    return Streamed(deltas, finish, usage)


def _call_deltas(index: int, arguments: list[str]) -> list[dict[str, Any]]:
    first, *rest = arguments
    call = {"index": index, "id": f"call_{index}", "type": "function"}
    opening = {**call, "function": {"name": f"tool_{index}", "arguments": first}}
    others = [{"index": index, "function": {"arguments": piece}} for piece in rest]
    return [{"tool_calls": [each]} for each in (opening, *others)]


@st.composite
def _interleaved(draw: st.DrawFn, runs: list[list[dict[str, Any]]], calls: int) -> list[Any]:
    """The pieces of all runs, each run in its order; calls begin in the order of their indices."""
    left = [list(run) for run in runs]
    first_call = len(runs) - calls
    begun = first_call
    mixed = []
    while any(left):
        can = [n for n, run in enumerate(left) if run and n <= begun]
        chosen = draw(st.sampled_from(can))
        if chosen == begun and chosen >= first_call:
            begun += 1
        elif chosen < first_call and begun < first_call:
            begun = first_call
        mixed.append(left[chosen].pop(0))
    return mixed


def streamed(
    answer: Streamed, translation: Translation, *, error_after: int | None = None, step: int = 1
) -> Recorded:
    """What a client is sent, `step` events of the chat stream in a write."""
    reply = Recorded()
    dialect = DialectReply(reply, translation, HeaderLines(b""))
    stream = AnswerStream(
        "chat", answer_id="x", created=0, model="a/b", include_usage=True, choices=1
    )
    events = answer.events()
    writes = [piece for event in events[:error_after] if (piece := stream.feed(event))]
    if error_after is None:
        writes.append(stream.finish())
    else:
        writes.append(stream.error_event(error_object(UpstreamCut("It broke."))))
    dialect.start(200, HeaderLines(b"content-type: text/event-stream\r\n"))
    for start in range(0, len(writes), step):
        dialect.write(b": keep-alive\n\n")
        dialect.write(b"".join(writes[start : start + step]))
    dialect.end()
    dialect.complete()
    assert reply.ended
    return reply


def whole(answer: Streamed, translation: Translation) -> dict[str, Any]:
    """The whole answer that a client is sent."""
    collector = AnswerCollector("chat", 1)
    for event in answer.events():
        collector.feed(event)
    body = rebuild_answer(
        "chat", collector.answer(), collector.usage,
        answer_id="x", created=0, model="a/b", choices=1,
    )  # fmt: skip
    reply = Recorded()
    dialect = DialectReply(reply, translation, HeaderLines(b""))
    dialect.send(200, HeaderLines(b""), body)
    assert not reply.started  # held back until it is complete
    dialect.complete()
    document: dict[str, Any] = json.loads(reply.data)
    return document
