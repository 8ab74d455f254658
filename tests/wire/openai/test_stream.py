"""The rebuilt stream: what holds for every sequence of events and every way to cut it."""

from __future__ import annotations

import contextlib
import itertools
import json
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamCut, UpstreamFailure, UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.collect import AnswerCollector
from prime_inference.wire.openai.stream import AnswerStream
from prime_inference.wire.sse import DONE, SseFramer

DONE_EVENT = b"data: [DONE]\n\n"


def answer_stream(
    shape: Literal["chat", "text"] = "chat", *, choices: int = 1, include_usage: bool = False
) -> AnswerStream:
    return AnswerStream(
        shape,
        answer_id="id-1",
        created=7,
        model="a/b",
        choices=choices,
        include_usage=include_usage,
    )


def chunk(index: int = 0, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


def usage(prompt: int, completion: int) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}


def event(document: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % json.dumps(document, ensure_ascii=False).encode()


def rebuilt(stream: AnswerStream, *documents: dict[str, Any]) -> bytes:
    """What the client is sent for these events."""
    return b"".join([stream.feed(json.dumps(d).encode()) for d in documents]) + stream.finish()


def chunks(data: bytes) -> list[dict[str, Any]]:
    """Every event of a stream but `[DONE]`, which has to be the last."""
    *events, last = SseFramer().feed(data)
    assert last == DONE
    return [json.loads(each) for each in events]


# -- framing

WHOLE = b"".join([
    b": a comment\n\n",
    event(chunk(role="assistant", content="")),
    event(chunk(content="naïve ")),
    event(chunk(content="東京 🚀")),
    event(chunk(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}])),
    event(chunk(tool_calls=[{"index": 0, "function": {"arguments": "}"}}])),
    event(chunk(finish="tool_calls")),
    event(usage(3, 5)),
    DONE_EVENT,
])  # fmt: skip


def relayed(pieces: list[bytes]) -> bytes:
    """What the client is sent when the upstream's bytes come in these pieces."""
    framer, stream = SseFramer(), answer_stream(include_usage=True)
    sent = b""
    for piece in pieces:
        for data in framer.feed(piece):
            sent += stream.finish() if data == DONE else stream.feed(data)
    return sent


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_a_stream_is_the_same_at_every_split_point(end: bytes):
    """higress#4146, #4248: usage was 0 now and then, as chunks happened to be cut."""
    whole = WHOLE.replace(b"\n", end)
    expected = relayed([WHOLE])
    assert chunks(expected)[-1]["usage"]["total_tokens"] == 8
    for cut in range(len(whole) + 1):
        assert relayed([whole[:cut], whole[cut:]]) == expected


@given(
    cuts=st.lists(st.integers(0, len(WHOLE) * 2), max_size=20),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_a_stream_is_the_same_however_often_it_is_cut(cuts: list[int], end: bytes):
    whole = WHOLE.replace(b"\n", end)
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    pieces = [whole[a:b] for a, b in itertools.pairwise(places)]
    assert relayed(pieces) == relayed([WHOLE])


# -- what holds for every answer

CHOICES = 3
texts = st.text(min_size=1, max_size=5)
deltas = st.one_of(
    st.builds(lambda text: {"content": text}, texts),
    st.builds(lambda text: {"reasoning_content": text}, texts),
    st.builds(lambda text: {"reasoning": text}, texts),
    st.builds(lambda text: {"refusal": text}, texts),
    st.sampled_from([{}, {"content": ""}, {"content": None}, {"role": "assistant", "content": ""}]),
)
sequences = st.lists(st.tuples(st.integers(0, CHOICES - 1), deltas), max_size=25)


@given(sequence=sequences, include_usage=st.booleans(), usage_on_all=st.booleans())
def test_every_answer_has_the_order_of_openais(
    sequence: list[tuple[int, dict[str, Any]]], include_usage: bool, usage_on_all: bool
):
    stream = answer_stream(choices=CHOICES, include_usage=include_usage)
    documents = [chunk(index, **delta) for index, delta in sequence]
    if usage_on_all:
        documents = [{**each, **usage(3, n)} | {"choices": each["choices"]}
                     for n, each in enumerate(documents)]  # fmt: skip
    documents += [chunk(index, "stop") for index in range(CHOICES)] + [usage(3, 9)]
    got = chunks(rebuilt(stream, *documents))

    assert {(c["id"], c["object"], c["created"], c["model"]) for c in got} == {
        ("id-1", "chat.completion.chunk", 7, "a/b")
    }
    if include_usage:
        assert got[-1]["choices"] == []
        assert got[-1]["usage"]["completion_tokens"] == 9
        assert all(c["usage"] is None for c in got[:-1])
        got = got[:-1]
    assert include_usage or all("usage" not in c for c in got)
    assert stream.usage == Usage(3, 9, source="upstream")
    for index in range(CHOICES):
        mine = [c["choices"][0] for c in got if c["choices"][0]["index"] == index]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
        assert [c["delta"].get("role") for c in mine] == ["assistant"] + [None] * (len(mine) - 1)
        for field, aliases in {
            "content": {"content"},
            "reasoning_content": {"reasoning_content", "reasoning"},
            "refusal": {"refusal"},
        }.items():
            said = [d.get(a) or "" for i, d in sequence if i == index for a in aliases]
            assert "".join(c["delta"].get(field) or "" for c in mine) == "".join(said)


@given(
    calls=st.lists(
        st.tuples(st.text("abc", min_size=1, max_size=3), st.lists(texts, max_size=4)),
        min_size=1,
        max_size=5,
        unique_by=lambda call: call[0],
    ),
    numbered=st.booleans(),
)
def test_tool_calls_are_numbered_from_zero_and_lose_nothing(
    calls: list[tuple[str, list[str]]], numbered: bool
):
    stream = answer_stream()
    documents = []
    for number, (identity, pieces) in enumerate(calls):
        place = {"index": number} if numbered else {}
        opening = {**place, "id": identity, "function": {"name": f"f-{identity}", "arguments": ""}}
        documents.append(chunk(tool_calls=[opening]))
        documents += [chunk(tool_calls=[{**place, "function": {"arguments": p}}]) for p in pieces]
    got = chunks(rebuilt(stream, *documents, chunk(finish="stop")))
    joined: dict[int, list[str]] = {}
    for each in got[:-1]:
        for call in each["choices"][0]["delta"]["tool_calls"]:
            joined.setdefault(call["index"], []).append(call["function"].get("arguments") or "")
            if len(joined[call["index"]]) == 1:
                assert call["id"] == calls[call["index"]][0]
                assert call["type"] == "function"
    assert list(joined) == list(range(len(calls)))
    assert ["".join(parts) for parts in joined.values()] == ["".join(p) or "{}" for _, p in calls]
    assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"


# -- what upstreams should not send


@given(data=st.binary(max_size=60))
def test_no_bytes_raise_anything_but_an_upstream_failure(data: bytes):
    with contextlib.suppress(UpstreamFailure):
        answer_stream().feed(data)


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "index", "content", "tool_calls", "function", "usage", "error"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(max_examples=300, deadline=None)
@given(document=values, logprobs=values)
def test_no_document_raises_anything_but_an_upstream_failure(document: Any, logprobs: Any):
    token = chunk(content="a")
    token["choices"][0]["logprobs"] = logprobs
    shapes: tuple[Literal["chat", "text"], ...] = ("chat", "text")
    for shape, each in itertools.product(shapes, (document, token)):
        data = json.dumps(each).encode()
        with contextlib.suppress(UpstreamFailure):
            AnswerCollector(shape, choices=1).feed(data)
        with contextlib.suppress(UpstreamFailure):
            for event in SseFramer().feed(answer_stream(shape).feed(data)):
                json.loads(event)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b'{"choices":{}}', b'{"choices":[{"index":-1}]}', b"\xff",
        b'{"choices":[{"index":0,"delta":{"content":5}}]}', b'{"usage":{"prompt_tokens":-1}}',
        b'{"choices":[{"index":1,"delta":{"content":"a"}}]}', b"[" * 5000,
        b'{"choices":[{"delta":{"content":"\\ud800"}}]}',
    ],
)  # fmt: skip
def test_what_breaks_the_format_is_malformed(data: bytes):
    with pytest.raises(UpstreamMalformed):
        answer_stream().feed(data)


@pytest.mark.parametrize("error", ["no", {"message": "no"}, [], 5, False])
def test_an_error_of_any_shape_is_a_failure(error: Any):
    with pytest.raises(UpstreamFailure):
        answer_stream().feed(json.dumps({"error": error}).encode())


def test_no_error_is_no_failure():
    assert answer_stream().feed(json.dumps({"error": None, **chunk(content="a")}).encode())


@pytest.mark.parametrize("finish", ["abort", "error"])
def test_an_engine_that_gives_up_has_not_finished(finish: str):
    stream = answer_stream()
    with pytest.raises(UpstreamCut):
        stream.feed(json.dumps(chunk(finish=finish)).encode())


def test_an_answer_is_not_finished_before_all_its_choices_are():
    stream = answer_stream(choices=2)
    stream.feed(json.dumps(chunk(0, "stop")).encode())
    assert not stream.finished
    with pytest.raises(UpstreamCut):
        stream.finish()


# -- details


def test_content_commits_and_nothing_else_does():
    stream = answer_stream()
    nothing: dict[str, Any] = {"choices": []}
    for document in (chunk(role="assistant", content=""), usage(1, 0), nothing):
        assert stream.feed(json.dumps(document).encode()) == b""
        assert not stream.committed
    assert stream.feed(json.dumps(chunk(content="a")).encode())
    assert stream.committed


def test_a_token_without_text_keeps_its_logprobs():
    """A token may be part of a character: its text is empty, its logprobs are not."""
    stream = answer_stream()
    logprobs = {"content": [{"token": "\\xf0", "logprob": -0.1, "bytes": [240]}]}
    document: dict[str, Any] = chunk(content="")
    document["choices"][0]["logprobs"] = logprobs
    (got, _) = chunks(rebuilt(stream, document, chunk(finish="stop")))
    assert got["choices"][0]["logprobs"] == logprobs
    assert stream.usage.completion_tokens == 1


def test_tokens_are_counted_by_the_engine_or_else_by_events():
    stream = answer_stream()
    assert stream.usage.source == "none"
    stream.feed(json.dumps(chunk(content="a")).encode())
    assert stream.usage == Usage(completion_tokens=1, source="counted")
    stream.feed(json.dumps({**chunk(content="b"), "usage": usage(3, 2)["usage"]}).encode())
    assert stream.usage == Usage(3, 2, source="upstream")


def test_an_error_event_ends_every_choice_and_carries_the_error():
    stream = answer_stream(choices=2)
    (data,) = SseFramer().feed(stream.error_event({"message": "no", "code": "x"}))
    document = json.loads(data)
    assert document["error"] == {"message": "no", "code": "x"}
    assert document["id"] == "id-1"
    assert [(c["index"], c["finish_reason"]) for c in document["choices"]] == [
        (0, "error"),
        (1, "error"),
    ]


def test_a_text_completion_is_a_stream_of_texts():
    stream = answer_stream("text")
    pieces = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in "ab"]
    got = chunks(rebuilt(stream, *pieces, {"choices": [{"text": "", "finish_reason": "length"}]}))
    assert {c["object"] for c in got} == {"text_completion"}
    assert [c["choices"][0]["text"] for c in got] == ["a", "b", ""]
    assert got[-1]["choices"][0]["finish_reason"] == "length"
