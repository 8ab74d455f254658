"""What is counted as tokens where an engine reports none."""

from __future__ import annotations

from typing import Any

import pytest

from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import (
    Answer,
    Choice,
    FunctionDelta,
    Message,
    ToolCallDelta,
    UpstreamUsage,
    whole_usage,
)
from prime_inference.wire.openai.estimate import estimated_tokens
from prime_inference.wire.openai.stream import AnswerStream


def message(content: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content, **fields}]}


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        (message(""), 0),
        (message("a"), 1),
        (message("abcd"), 1),
        (message("abcde"), 1),
        (message("abcdef"), 2),
        (message("\u6c34\u6c34\u6c34\u6c34"), 3),  # by bytes, not by characters
        (message([{"type": "text", "text": "abcd"}, {"type": "text", "text": "efgh"}]), 2),
        (message([{"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}}]), 0),
        (message(None, tool_calls=[{"function": {"name": "abcd", "arguments": "{}{}"}}]), 2),
        ({"prompt": "abcdefgh"}, 2),
        ({"prompt": ["abcd", "efgh"]}, 2),
        ({"prompt": [5, 6, 7]}, 3),  # ids of tokens are tokens
        ({"input": [[5, 6], [7]]}, 3),
    ],
)
def test_five_bytes_of_text_are_a_token_and_an_image_is_none(content: Any, tokens: int):
    assert estimated_tokens(content) == tokens


def whole(message: Message, usage: UpstreamUsage | None = None) -> Answer:
    return Answer([Choice(message=message, finish_reason="stop")], usage)


def test_an_answer_that_reports_its_tokens_is_believed():
    answer = whole(Message(content="abcdefgh"), UpstreamUsage(3, 9, 12))
    assert whole_usage(answer) == Usage(3, 9, source="upstream")


@pytest.mark.parametrize(("reported", "prompt"), [(None, 0), (UpstreamUsage(3), 3)])
def test_an_answer_that_reports_no_completion_beside_its_text_is_counted(
    reported: UpstreamUsage | None, prompt: int
):
    calls = [ToolCallDelta(function=FunctionDelta("abcd", "efgh"))]
    said = Message(content="abcd", reasoning_content="efgh", tool_calls=calls)
    assert whole_usage(whole(said, reported)) == Usage(prompt, 4, source="counted")


def test_an_answer_without_a_word_stays_without_a_token():
    assert whole_usage(whole(Message(content=""))) == Usage()
    assert whole_usage(whole(Message(), UpstreamUsage(3))) == Usage(3, source="upstream")


@pytest.mark.parametrize(
    ("report", "usage"),
    [
        ('{"prompt_tokens": 3, "completion_tokens": 9}', Usage(3, 9, source="upstream")),
        ('{"prompt_tokens": 3, "completion_tokens": 0}', Usage(3, 2, source="counted")),
        ("{}", Usage(0, 2, source="counted")),
        ("null", Usage(0, 2, source="counted")),
    ],
)
def test_a_stream_that_reports_no_completion_beside_its_content_is_counted_by_events(
    report: str, usage: Usage
):
    stream = AnswerStream("chat", answer_id="x", created=0, model="a/b", include_usage=True)
    for text in ("one", " two"):
        stream.feed(b'{"choices": [{"delta": {"content": "%b"}}]}' % text.encode())
    stream.feed(b'{"choices": [], "usage": %b}' % report.encode())
    assert stream.usage == usage
