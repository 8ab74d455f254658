import asyncio
import json

import httpx
import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.engines.mock.behaviour import HUGE_EVENT_BYTES, UnknownBehaviour
from prime_inference.engines.mock.text import answer_tokens, chat_prompt
from tests.engines.mock.conftest import HELLO, Client, parse_events, streamed_text


async def is_silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes, not even an end, for a tenth of a second."""
    try:
        async with asyncio.timeout(0.1):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


async def test_a_status_comes_with_its_retry_after_and_only_as_often_as_told(client: Client):
    model = "mock/status-429.retry-after-2.first-1"
    first, second = await client.chat(model=model), await client.chat(model=model)
    assert (first.status_code, first.headers["retry-after"]) == (429, "2")
    assert first.json()["error"]["code"] == 429
    assert second.status_code == 200
    assert [seen.outcome for seen in client.engine.requests] == ["refused", "complete"]


async def test_a_header_chooses_a_behaviour_too(client: Client):
    client.http.headers["x-mock-behaviour"] = "status-503"
    assert (await client.chat()).status_code == 503


async def test_behave_applies_to_one_model_or_to_all(client: Client):
    client.engine.behave("status-503", model="a/b")
    assert (await client.chat(model="a/b")).status_code == 503
    assert (await client.chat(model="a/c")).status_code == 200
    client.engine.behave("status-500")
    assert (await client.chat(model="a/c")).status_code == 500
    client.engine.behave("", model="a/b")
    assert (await client.chat(model="a/b")).status_code == 200


async def test_an_unknown_behaviour_is_told_apart_from_a_fault(client: Client):
    answer = await client.chat(model="mock/cut-aftr-3")
    assert answer.status_code == 404
    assert "cut-after" in answer.json()["error"]["message"]
    with pytest.raises(UnknownBehaviour):
        client.engine.behave("nonsense")


@pytest.mark.parametrize("spec", ["reset", "reset-after-3"])
async def test_a_reset_is_a_reset(client: Client, spec: str):
    reader, writer = await client.raw(model=f"mock/{spec}", stream=True)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
    assert client.engine.requests[-1].outcome == "reset"


async def test_close_ends_the_connection_without_a_word(client: Client):
    reader, writer = await client.raw(model="mock/close")
    assert await reader.read() == b""
    writer.close()


async def test_silence_lasts_until_the_client_leaves(client: Client):
    client.http.timeout = httpx.Timeout(0.1)
    with pytest.raises(httpx.ReadTimeout):
        await client.chat(model="mock/silence")
    await client.engine.quiet()
    seen = client.engine.requests[-1]
    assert (seen.outcome, seen.tokens) == ("client left", 0)
    assert seen.seconds >= 0.09


async def test_a_cut_stream_lacks_its_end(client: Client):
    reader, writer = await client.raw(model="mock/cut-after-4", stream=True)
    body = await reader.read()
    writer.close()
    assert body.count(b'"delta":{"content":') == 4
    assert b'finish_reason":"' not in body
    assert not body.endswith(b"0\r\n\r\n")
    assert client.engine.requests[-1].outcome == "cut"


async def test_a_cut_whole_answer_never_starts(client: Client):
    reader, writer = await client.raw(model="mock/cut-after-4")
    assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("after", [63, 64])
async def test_a_cut_can_fall_on_the_last_token(client: Client, after: int):
    with pytest.raises(httpx.RemoteProtocolError):
        await client.events(model=f"mock/cut-after-{after}")
    assert client.engine.requests[-1].tokens == after


async def test_a_stream_can_end_early_in_good_form(client: Client):
    events = await client.events(model="mock/end-after-4")
    assert streamed_text(events) == expected_text(HELLO, 4)
    assert events[-1] != "[DONE]"


async def test_a_stalled_stream_stays_open(client: Client):
    reader, writer = await client.raw(model="mock/stall-after-2", stream=True)
    await reader.readuntil(expected_text(HELLO, 2)[4:].encode())
    await reader.readuntil(b"\r\n")
    assert await is_silent(reader)
    assert client.engine.requests[-1].outcome == "stalled"
    writer.close()
    await client.engine.quiet()
    assert client.engine.requests[-1].outcome == "client left"
    assert client.engine.requests[-1].tokens == 2


async def test_a_stall_can_pass(client: Client):
    loop = asyncio.get_running_loop()
    start = loop.time()
    events = await client.events(model="mock/stall-after-3.stall-200ms")
    assert streamed_text(events) == expected_text(HELLO)
    assert loop.time() - start >= 0.2


async def test_an_error_event_ends_the_stream(client: Client):
    events = await client.events(model="mock/error-after-2")
    assert streamed_text(events[:-2]) == expected_text(HELLO, 2)
    assert events[-2]["error"]["message"] == "The engine died."
    assert (await client.chat(model="mock/error-after-2")).status_code == 500


async def test_a_malformed_chunk_is_in_its_place(client: Client):
    answer = await client.chat(model="mock/malformed-at-3", stream=True)
    tokens = [line[6:] for line in answer.text.split("\n\n") if line.startswith("data: ")]
    broken = []
    for n, line in enumerate(tokens[:-1]):
        try:
            json.loads(line)
        except ValueError:
            broken.append(n)
    assert broken == [3]  # the role comes first
    whole = await client.chat(model="mock/malformed-at-3")
    with pytest.raises(json.JSONDecodeError):
        whole.json()


async def test_without_done_the_connection_stays_open(client: Client):
    reader, writer = await client.raw(
        model="mock/no-done", stream=True, stream_options={"include_usage": True}
    )
    body = await reader.readuntil(b'"total_tokens":68}}\n\n\r\n')
    assert b"[DONE]" not in body
    assert await is_silent(reader)
    writer.close()


async def test_a_stream_can_end_well_but_without_done(client: Client):
    events = await client.events(model="mock/end-without-done")
    assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
async def test_usage_and_finish_reason_can_be_missing(client: Client, stream: bool):
    fields = {"model": "mock/no-usage.no-finish", "stream_options": {"include_usage": True}}
    if stream:
        events = await client.events(**fields)
        assert streamed_text(events) == expected_text(HELLO)
        assert not any("usage" in event for event in events[:-1])
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
    else:
        answer = (await client.chat(**fields)).json()
        assert "usage" not in answer
        assert answer["choices"][0]["finish_reason"] is None


async def test_prefill_can_be_refused(client: Client):
    messages = [*HELLO, {"role": "assistant", "content": "Well"}]
    assert (await client.chat(model="mock/refuse-prefill", messages=messages)).status_code == 400
    assert (await client.chat(model="mock/refuse-prefill")).status_code == 200


async def test_the_refusals_of_engines_are_worded_like_theirs(client: Client):
    answer = await client.chat(model="mock/context-length")
    assert answer.status_code == 400
    assert "maximum context length is" in answer.json()["error"]["message"]
    answer = await client.chat(model="mock/content-filter")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")


async def test_bodies_can_be_a_page_or_garbage(client: Client):
    page = await client.chat(model="mock/html.status-502")
    assert (page.status_code, page.headers["content-type"]) == (502, "text/html")
    garbage = await client.chat(model="mock/garbage")
    assert garbage.status_code == 200
    with pytest.raises(json.JSONDecodeError):
        garbage.json()
    with pytest.raises(httpx.RemoteProtocolError):
        await client.chat(model="mock/not-http")


async def test_the_content_length_can_lie(client: Client):
    with pytest.raises(httpx.RemoteProtocolError):
        await client.chat(model="mock/length-plus-10")
    short = await client.chat(model="mock/length-minus-10")
    with pytest.raises(json.JSONDecodeError):
        short.json()


async def test_a_connection_can_close_right_after_an_answer(client: Client):
    reader, writer = await client.raw(model="mock/close-after", stream=True)
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"connection: close" not in head
    assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()


async def test_a_huge_event_is_still_an_event(client: Client):
    answer = await client.chat(model="mock/huge-at-2", stream=True)
    assert len(answer.content) > HUGE_EVENT_BYTES
    assert streamed_text(parse_events(answer.content)) == expected_text(HELLO)


@pytest.mark.parametrize(
    "spec",
    ["crlf", "cr", "chunks-1", "chunks-7.crlf", "comments", "comments.cr.chunks-3", "pace-1ms"],
)
async def test_framing_does_not_change_what_is_said(client: Client, spec: str):
    events = await client.events(model=f"mock/{spec}")
    assert streamed_text(events) == expected_text(HELLO)
    assert events[-1] == "[DONE]"


async def test_an_answer_has_the_length_asked_for(client: Client):
    events = await client.events(model="mock/answer-7.pace-1ms")
    assert streamed_text(events) == expected_text(HELLO, length=7)
    assert len(answer_tokens(chat_prompt(HELLO), 7)) == 7


@pytest.mark.parametrize("spec", ["slow-first-150ms", "slow-head-150ms"])
async def test_the_first_token_can_be_slow_with_or_without_its_head(client: Client, spec: str):
    loop = asyncio.get_running_loop()
    start = loop.time()
    reader, writer = await client.raw(model=f"mock/{spec}", stream=True)
    await reader.readuntil(b"\r\n\r\n")
    head = loop.time() - start
    await reader.readuntil(b"\n\n\r\n")
    assert loop.time() - start >= 0.15
    assert (head < 0.15) == spec.startswith("slow-first")
    writer.close()


async def test_tokens_come_at_their_pace_and_the_client_that_leaves_is_counted():
    async with MockEngine(pace=0.03, first_token=0.03) as engine, Client(engine) as client:
        reader, writer = await client.raw(stream=True)
        await reader.readuntil(expected_text(HELLO, 3)[9:].encode())
        writer.close()
        await engine.quiet()
        seen = engine.requests[-1]
    assert seen.outcome == "client left"
    assert 3 <= seen.tokens < 64
    assert seen.seconds >= 3 * 0.03


async def test_a_paced_stream_waits_for_a_client_that_does_not_read():
    async with MockEngine(pace=0.001) as engine, Client(engine) as client:
        model = "mock/answer-60.huge-at-2"
        reader, writer = await client.raw(model=model, stream=True, receive_buffer=4096)
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.3)  # five times what the answer takes to say
        assert engine.requests[-1].tokens == 2
        while not (await reader.read(65536)).endswith(b"0\r\n\r\n"):
            pass
        writer.close()
        await engine.quiet()
        assert engine.requests[-1].outcome == "complete"
        assert engine.requests[-1].tokens == 60


async def test_requests_in_a_row_on_one_connection_are_answered_in_order(client: Client):
    body = json.dumps({"model": "mock/pace-1ms", "messages": HELLO, "max_tokens": 2}).encode()
    reader, writer = await client.raw(max_tokens=3, model="mock/pace-5ms")
    head = f"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answers = await reader.readuntil(b'"completion_tokens":2')
    assert b'"completion_tokens":3' in answers
    writer.close()
