"""The client against the mock engine, well-behaved and not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_inference.bench.agents.answers import Answer, read_answer
from prime_inference.bench.agents.http_stream import Address, Exchange, StreamClient
from prime_inference.engines.mock import MockEngine


@pytest.fixture
async def engine() -> AsyncIterator[MockEngine]:
    async with MockEngine() as engine:
        yield engine


async def asked(engine: MockEngine, *behaviours: str, **options: Any) -> list[Exchange]:
    client = StreamClient(Address.parse(engine.base_url))
    body = {"model": "mock/plain", "messages": [{"role": "user", "content": "a b c"}],
            "max_tokens": 20, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    exchanges = []
    for behaviour in behaviours:
        exchanges.append(await client.post(
            "/chat/completions", msgspec.json.encode(body),
            headers=f"x-mock-behaviour: {behaviour}\r\n".encode() if behaviour else b"", **options,
        ))  # fmt: skip
    client.close()
    return exchanges


def read(exchange: Exchange) -> Answer:
    return read_answer(exchange.times, exchange.bodies, keep_text=True)


@pytest.mark.parametrize("behaviour", ["", "crlf", "cr", "comments", "chunks-1", "chunks-7"])
async def test_an_answer_is_read_whole_however_it_is_framed(
    engine: MockEngine, behaviour: str
) -> None:
    plain, exchange = await asked(engine, "", behaviour)
    answer = read(exchange)
    assert (exchange.status, exchange.failure, answer.error) == (200, None, None)
    assert (answer.events, answer.finish, answer.done) == (20, "length", True)
    assert (answer.prompt_tokens, answer.completion_tokens) == (5, 20)
    assert answer.text == read(plain).text != ""


async def test_times_are_those_of_the_first_and_the_last_token(engine: MockEngine) -> None:
    (exchange,) = await asked(engine, "slow-first-200ms.pace-10ms.stall-after-10.stall-500ms")
    answer = read(exchange)
    assert answer.first is not None
    assert answer.last is not None
    assert answer.first - exchange.sent >= 0.2
    # an event may be seen late, so that what follows it seems to come soon after; never early
    assert answer.last - exchange.sent >= 0.2 + 0.19 + 0.5 - 0.01
    assert answer.longest_gap >= 0.4
    assert exchange.end >= answer.last


async def test_a_connection_is_used_again(engine: MockEngine) -> None:
    await asked(engine, "", "", "")
    assert len(engine.requests) == 3
    assert len(engine.connections) <= 1


@pytest.mark.parametrize(
    ("behaviour", "failure", "events"),
    [
        ("reset", "unreachable", 0),
        ("cut-after-5", "cut", 5),
        ("reset-after-5", "cut", 5),
        ("not-http", "malformed", 0),
        ("status-503", None, 0),
        ("end-after-5", None, 5),
    ],
)
async def test_an_answer_that_ends_badly_says_how(
    engine: MockEngine, behaviour: str, failure: str | None, events: int
) -> None:
    (exchange,) = await asked(engine, behaviour)
    assert exchange.failure == failure
    assert exchange.status == (503 if behaviour == "status-503" else exchange.status)
    if exchange.status == 200:
        assert read(exchange).events == events
        assert read(exchange).finish is None


async def test_a_silent_server_is_given_up_after_the_time_allowed(engine: MockEngine) -> None:
    (exchange,) = await asked(engine, "silence", seconds=0.05)
    assert exchange.failure == "timeout"
    await engine.quiet()
    assert engine.requests[-1].outcome != "complete"


async def test_a_cancelled_answer_keeps_what_came_and_the_server_sees_it(
    engine: MockEngine,
) -> None:
    (exchange,) = await asked(engine, "pace-10ms", cancel_after=5)
    assert exchange.failure == "cancelled"
    assert read(exchange).events >= 3
    await engine.quiet()
    assert engine.requests[-1].outcome != "complete"


async def test_a_kept_connection_that_was_closed_is_replaced(engine: MockEngine) -> None:
    exchanges = await asked(engine, "close-after", "", "")
    assert [e.failure for e in exchanges] == [None, None, None]


async def test_nobody_there_is_a_failure_and_not_an_exception() -> None:
    client = StreamClient(Address.parse("http://127.0.0.1:1/v1"))
    exchange = await client.post("/chat/completions", b"{}")
    assert exchange.failure == "unreachable"


async def test_an_error_event_and_broken_json_are_errors_of_the_answer(engine: MockEngine) -> None:
    failed, broken = await asked(engine, "error-after-3", "malformed-at-3")
    assert read(failed).error
    assert "no chunk" in (read(broken).error or "")


async def test_tool_calls_are_put_together(engine: MockEngine) -> None:
    client = StreamClient(Address.parse(engine.base_url))
    tool = {"type": "function", "function": {"name": "look", "parameters": {
        "type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}  # fmt: skip
    body = {"model": "mock/plain", "messages": [{"role": "user", "content": "a"}], "stream": True,
            "tools": [tool], "tool_choice": "required"}  # fmt: skip
    answer = read(await client.post("/chat/completions", msgspec.json.encode(body)))
    client.close()
    (call,) = answer.tool_calls
    assert call.name == "look"
    assert "q" in msgspec.json.decode(call.arguments)


EVENTS = b"".join(
    b'data: {"choices":[{"index":0,"delta":{"content":"%d"}}]}\n\n' % n for n in range(5)
)
OPENING = b': hello\n\ndata: {"choices":[{"index":0,"delta":{"role":"assistant"}}]}\n\n'


@settings(deadline=None)
@given(
    st.lists(st.integers(0, len(OPENING + EVENTS)), max_size=12), st.sampled_from(["lf", "crlf"])
)
def test_an_event_came_when_its_last_byte_did(cuts: list[int], ends: str) -> None:
    stream = OPENING + EVENTS
    marks = [0, *sorted(set(cuts) - {0, len(stream)}), len(stream)]
    if ends == "crlf":
        stream = stream.replace(b"\n", b"\r\n")
        marks = [0, *sorted(set(cuts) - {0, len(stream)}), len(stream)]
    bodies = [stream[a:b] for a, b in pairwise(marks)]
    times = [float(n) for n in range(len(bodies))]
    answer = read_answer(times, bodies, keep_text=True)
    assert answer.text == "01234"
    first_end = stream.index(b'"0"') + len(b'"0"}}]}') + (2 if ends == "lf" else 4)
    arrived = next(n for n, end in enumerate(marks[1:]) if end >= first_end)
    assert answer.first is not None
    # the second half of a last CRLF adds nothing, so the event may count as complete before it
    assert answer.first in ({float(arrived)} if ends == "lf" else {arrived, arrived - 1.0})
    assert answer.last is not None
    assert answer.last >= answer.first


def test_an_address_needs_a_scheme_and_a_host() -> None:
    assert Address.parse("https://example.org/v1/").authority == "example.org:443"
    for bad in ("ftp://x/", "example.org", "http:///v1"):
        with pytest.raises(ValueError, match="base URL"):
            Address.parse(bad)
