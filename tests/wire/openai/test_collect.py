"""A stream put together is the whole answer."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.errors import UpstreamCut
from prime_inference.wire.openai.answers import Answer
from prime_inference.wire.openai.collect import AnswerCollector


def event(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish, **more}
    return msgspec.json.encode({"choices": [choice]})


def collected(*events: bytes) -> Answer:
    collector = AnswerCollector("chat", choices=1)
    for data in events:
        collector.feed(data)
    return collector.answer()


@given(st.lists(st.text(), max_size=8))
def test_content_is_the_sum_of_its_pieces(pieces: list[str]):
    answer = collected(*(event({"content": piece}) for piece in pieces), event(finish="stop"))
    message = answer.choices[0].message
    assert message is not None
    assert message.content == "".join(pieces)


def test_tool_calls_are_put_together_by_call():
    def call(index: int, text: str, **first: Any) -> bytes:
        function = {"arguments": text, **({"name": first.pop("name")} if first else {})}
        return event({"tool_calls": [{"index": index, "function": function, **first}]})

    answer = collected(
        call(0, "", id="a", name="read"),
        call(0, '{"path":'),
        call(0, '"x"}'),
        call(1, "{}", id="b", name="stop"),
        event(finish="tool_calls"),
    )
    message = answer.choices[0].message
    assert message is not None
    assert message.tool_calls is not None
    calls = [
        (c.id, c.function and (c.function.name, c.function.arguments)) for c in message.tool_calls
    ]
    assert calls == [("a", ("read", '{"path":"x"}')), ("b", ("stop", "{}"))]
    assert message.content is None


def test_logprobs_are_put_in_one_list():
    def token(text: str) -> bytes:
        entry = {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        return event({"content": text}, logprobs={"content": [entry]})

    answer = collected(token("a"), token("b"), event(finish="length"))
    logprobs = msgspec.json.decode(answer.choices[0].logprobs)
    assert [entry["token"] for entry in logprobs["content"]] == ["a", "b"]


def test_a_stream_without_a_finish_reason_is_no_whole_answer():
    with pytest.raises(UpstreamCut):
        collected(event({"content": "half"}))


def test_pieces_of_text_are_put_together():
    collector = AnswerCollector("text", choices=2)
    for index, text in [(0, "a"), (1, "x"), (0, "b")]:
        choice = {"index": index, "text": text}
        collector.feed(msgspec.json.encode({"choices": [choice]}))
    for index in range(2):
        choice = {"index": index, "text": "", "finish_reason": "stop"}
        collector.feed(msgspec.json.encode({"choices": [choice]}))
    assert [choice.text for choice in collector.answer().choices] == ["ab", "x"]


def test_usage_is_that_of_the_stream():
    collector = AnswerCollector("chat", choices=1)
    collector.feed(event({"content": "a"}, finish="stop"))
    usage = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    collector.feed(msgspec.json.encode({"choices": [], "usage": usage}))
    assert (collector.usage.prompt_tokens, collector.usage.completion_tokens) == (3, 1)
