"""Dynamo's requests as llama.cpp's, and back."""

from __future__ import annotations

import asyncio
import json

import msgspec
import pytest

from prime_inference.engines.dynamo.completion import Unsupported, chunk_of, completion_body
from prime_inference.engines.dynamo.worker import Worker

REQUEST = {
    "model": "m",
    "token_ids": [1, 2, 3],
    "sampling_options": {"temperature": 0.5, "top_p": None, "seed": 7, "repetition_penalty": 1.1},
    "stop_conditions": {"max_tokens": 10, "stop": None, "ignore_eos": False},
    "output_options": {},
}


def test_a_request_keeps_its_tokens_and_sampling():
    body = completion_body(REQUEST, 100)
    assert body["prompt"] == [1, 2, 3]
    assert body["n_predict"] == 10
    assert (body["temperature"], body["seed"], body["repeat_penalty"]) == (0.5, 7, 1.1)
    assert (body["top_p"], body["top_k"], body["min_p"]) == (1.0, 0, 0.0)  # not the engine's own
    assert body["stream"]
    assert body["return_tokens"]


def test_an_answer_ends_where_the_context_does():
    without = REQUEST | {"stop_conditions": {}}
    assert completion_body(without, 100)["n_predict"] == 97
    assert completion_body(REQUEST, 8)["n_predict"] == 5
    with pytest.raises(Unsupported, match="3 tokens exceeds 3"):
        completion_body(REQUEST, 3)


def test_a_schema_is_passed_on_and_other_guidance_refused():
    guided = {"sampling_options": {"guided_decoding": {"json": {"type": "object"}, "regex": None}}}
    assert completion_body(REQUEST | guided, 100)["json_schema"] == {"type": "object"}
    tags = {"sampling_options": {"guided_decoding": {"structural_tag": {"type": "tag"}}}}
    with pytest.raises(Unsupported, match="structural_tag"):
        completion_body(REQUEST | tags, 100)


def line(**fields) -> str:
    return f"data: {json.dumps(fields)}"


def test_pieces_become_chunks_of_tokens():
    assert chunk_of(line(content="a", tokens=[5], stop=False)) == {"token_ids": [5]}
    assert chunk_of(line(content="", tokens=[], stop=False)) is None
    assert chunk_of("") is None
    assert chunk_of(": comment") is None


@pytest.mark.parametrize(
    ("stop_type", "reason"), [("limit", "length"), ("eos", "stop"), ("word", "stop")]
)
def test_the_last_piece_has_the_reason_and_the_usage(stop_type, reason):
    last = chunk_of(
        line(
            tokens=[],
            stop=True,
            stop_type=stop_type,
            tokens_evaluated=30,
            tokens_predicted=4,
            timings={"cache_n": 29, "prompt_ms": 1.0},
        )
    )
    assert last is not None
    assert last["finish_reason"] == reason
    assert last["completion_usage"]["total_tokens"] == 34
    assert last["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 29}


def test_a_damaged_line_is_an_error():
    with pytest.raises(msgspec.DecodeError):
        chunk_of("data: {")


# -- the handler, over a real socket


class Context:
    """Dynamo's handle on a request, as far as a worker uses it."""

    def __init__(self) -> None:
        self.killed = asyncio.get_running_loop().create_future()

    async def async_killed_or_stopped(self) -> bool:
        return bool(await self.killed)


async def served(answer, work):
    """Run `work` with the address of a server that writes `answer` and then waits."""
    gone = asyncio.Event()

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        while await reader.read(1000):
            pass
        gone.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        worker = Worker(f"http://127.0.0.1:{port}/completion", 100)
        try:
            result = await work(worker)
        finally:
            await worker.close()
        await asyncio.wait_for(gone.wait(), 10)
        return result


async def test_a_cancelled_request_hangs_up_on_the_engine():
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    piece = line(content="a", tokens=[5], stop=False).encode() + b"\n\n"

    async def work(worker):
        context = Context()
        chunks = []
        async for chunk in worker.generate(REQUEST, context):
            chunks.append(chunk)
            context.killed.set_result(True)
        return chunks

    assert await served(head + piece, work) == [{"token_ids": [5]}]


async def test_what_the_engine_refuses_becomes_the_finish_reason():
    body = b'{"error": "no"}'
    answer = b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def work(worker):
        return [chunk async for chunk in worker.generate(REQUEST, Context())]

    (chunk,) = await served(answer, work)
    assert chunk["finish_reason"] == 'error: {"error": "no"}'


async def test_a_request_that_cannot_be_served_is_answered_without_the_engine():
    worker = Worker("http://127.0.0.1:1/completion", 2)
    (chunk,) = [chunk async for chunk in worker.generate(REQUEST, Context())]
    assert chunk["finish_reason"].startswith("error: a prompt of 3 tokens")
    await worker.close()
