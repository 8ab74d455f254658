"""One stream out of two engines' events."""

from __future__ import annotations

import json
from typing import Any

from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.continued import ContinuedStream
from prime_inference.wire.openai.said import Said
from prime_inference.wire.openai.stream import AnswerStream
from prime_inference.wire.sse import DONE, SseFramer


def begun(*contents: str, usage: int | None = None) -> AnswerStream:
    """The stream of an engine that has died after these deltas."""
    stream = AnswerStream("chat", answer_id="id", created=1, model="m", include_usage=True)
    stream.said = Said(None)
    for count, content in enumerate(contents, 1):
        event: dict[str, Any] = {"choices": [{"delta": {"content": content}}]}
        if usage is not None:
            event["usage"] = {"prompt_tokens": usage, "completion_tokens": count}
        stream.feed(json.dumps(event).encode())
    return stream


def go_on(stream: AnswerStream, *stops: str) -> ContinuedStream:
    said = stream.said
    assert said is not None
    continued = ContinuedStream(stream, said, stops)
    said.taken_up(None)
    return continued


def text_of(data: bytes) -> str:
    chunks = [json.loads(event) for event in SseFramer().feed(data) if event != DONE]
    return "".join(c["delta"].get("content") or "" for x in chunks for c in x["choices"])


def test_the_next_engine_may_answer_in_the_shape_of_completions():
    stream = go_on(begun("one"))
    sent = stream.feed(b'{"choices":[{"text":" two","finish_reason":null}]}')
    (chunk,) = [json.loads(event) for event in SseFramer().feed(sent)]
    assert chunk["object"] == "chat.completion.chunk"
    assert chunk["choices"][0]["delta"] == {"content": " two"}  # no role: it was sent


def test_text_held_back_for_a_stop_string_is_sent_when_the_answer_ends_without_it():
    stream = go_on(begun("one tw"), "twofold")
    assert stream.feed(b'{"choices":[{"text":"of"}]}') == b""
    assert text_of(stream.finish("length")) == "of"


def test_usage_has_the_prompt_once_and_every_token_once():
    stream = go_on(begun("one", " two", usage=7))
    stream.feed(
        b'{"choices":[{"text":" three"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
    )
    assert stream.usage == Usage(7, 3, source="upstream")
    third = go_on(stream)
    assert third.usage == Usage(7, 3, source="upstream")
    third.feed(b'{"choices":[{"text":"!"}],"usage":{"prompt_tokens":10,"completion_tokens":1}}')
    assert third.usage == Usage(7, 4, source="upstream")


def test_what_one_engine_did_not_count_is_not_called_the_engines_count():
    stream = go_on(begun("one", " two"))
    stream.feed(
        b'{"choices":[{"text":" three"}],"usage":{"prompt_tokens":9,"completion_tokens":1}}'
    )
    assert stream.usage == Usage(7, 3, source="counted")


def test_a_token_that_only_repeats_the_seam_is_neither_sent_nor_counted():
    stream = begun("one", "\n", usage=7)
    said = stream.said
    assert said is not None
    said.taken_up(None, again="\n")
    continued = ContinuedStream(stream, said, ())
    sent = b""
    for count, text in enumerate(("\n", "two"), 1):
        event: dict[str, Any] = {"choices": [{"delta": {"content": text}}]}
        event["usage"] = {"prompt_tokens": 8, "completion_tokens": count}
        sent += continued.feed(json.dumps(event).encode())
    assert text_of(sent) == "two"
    assert continued.usage == Usage(7, 3, source="upstream")
