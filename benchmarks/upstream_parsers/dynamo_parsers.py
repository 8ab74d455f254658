"""Reads cases with Dynamo's own parsers; run by a Python that has Dynamo.

    python benchmarks/upstream_parsers/dynamo_parsers.py cases.json results.json

Dynamo's parsers have no Python surface (`dynamo._core` tells their names only), so they are asked
where they work: in a real frontend. Behind it is one worker of ours with a model for each format,
whose chat template is the user's message and nothing else, and which answers with the tokens of
its prompt. So what the frontend's parser reads is the case's text, token for token; the worker
checks that it is. Each text is read three times: whole, token by token, and five tokens at a
time, as the sampling parameter `seed` tells the worker. The tokenizer is that of `vllm_parsers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.metadata
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
from vllm_parsers import (  # type: ignore[import-not-found]  # beside this file
    WAYS,
    Json,
    tokenizer,
)

NAMES = {
    "hermes": "hermes",
    "llama-3": "llama3_json",
    "kimi-k2": "kimi_k2",
    "deepseek-v3.1": "deepseek_v3_1",
    "deepseek-v3.2": "deepseek_v3_2",
    "glm-4.5": "glm45",
    "glm-4.7": "glm47",
    "qwen3-coder": "qwen3_coder",
}
HOW = "its frontend, over HTTP, in front of a worker that answers with the text's tokens."
HOST = "127.0.0.1"
CONTEXT_TOKENS = 65536
READY_SECONDS = 120.0  # file discovery looks every few seconds
ANSWER_SECONDS = 60.0
TOGETHER = 8  # requests at a time


def environment(discovery: Path) -> dict[str, str]:
    """Everything on loopback, discovery by files: the one that needs no server."""
    return {
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(discovery),
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": HOST,
        "DYN_TCP_RESPONSE_STREAM_HOST": HOST,
        "DYN_EVENT_PLANE_HOST": HOST,
        "DYN_SYSTEM_HOST": HOST,
        "DYN_LOG": "error",
    }


def write_model(folder: Path) -> Any:
    """The folder of a model that says what it is told; returns its tokenizer."""
    tokens = tokenizer()
    tokens.chat_template = "{{ messages[-1].content }}"
    tokens.eos_token = "<|end|>"
    tokens.save_pretrained(folder)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": tokens.eos_token_id,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    return tokens


class Echo:
    """Answers with its prompt, in pieces of so many tokens as the seed says."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[Json]:
        ids = list(request["token_ids"])
        self.prompts.append(ids)
        size = request["sampling_options"]["seed"]
        for start in range(0, len(ids), size):
            yield {"token_ids": ids[start : start + size]}
            await asyncio.sleep(0)
        yield {"token_ids": [], "finish_reason": "stop"}


async def serve(runtime: Any, echo: Echo, folder: Path) -> list[asyncio.Task[None]]:
    """Register a model for each format, and serve them all."""
    llm: Any = importlib.import_module("dynamo.llm")
    serving = []
    for form, parser in NAMES.items():
        place = form.replace(".", "-")
        endpoint = runtime.endpoint(f"parsers.{place}.generate")
        settings = llm.ModelRuntimeConfig()
        settings.context_length = CONTEXT_TOKENS
        settings.tool_call_parser = parser
        settings.kv_event_publishing_enabled = False
        await llm.register_model(
            llm.ModelInput.Tokens,
            llm.ModelType.Chat,
            endpoint,
            str(folder),
            form,
            worker_type=llm.WorkerType.Aggregated,
            runtime_config=settings,
        )
        serving.append(asyncio.ensure_future(endpoint.serve_endpoint(echo.generate)))
    return serving


@contextlib.asynccontextmanager
async def frontend() -> AsyncIterator[str]:
    """A frontend of Dynamo's; its base URL."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    arguments = ["-m", "dynamo.frontend", "--http-host", HOST, "--http-port", str(port)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments)
    try:
        yield f"http://{HOST}:{port}"
    finally:
        process.terminate()
        await process.wait()


async def ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(READY_SECONDS):
        for form in NAMES:
            while True:
                with contextlib.suppress(httpx.HTTPError, ValueError):
                    if (await client.get(f"/v1/models/{form}/ready")).json()["ready"]:
                        break
                await asyncio.sleep(0.5)


def request_of(case: Json, size: int, *, stream: bool) -> Json:
    return {
        "model": case["form"],
        "messages": [{"role": "user", "content": case["text"]}],
        "tools": case["tools"],
        "tool_choice": "auto",
        "seed": size,
        "stream": stream,
    }


async def read_whole(client: httpx.AsyncClient, case: Json) -> Json:
    body = request_of(case, 1, stream=False)
    answer = await client.post("/v1/chat/completions", json=body)
    answer.raise_for_status()
    message = answer.json()["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or []]
    return {
        "content": message.get("content"),
        "calls": [[call["name"], call["arguments"]] for call in calls],
    }


async def read_streamed(client: httpx.AsyncClient, case: Json, size: int) -> Json:
    content = ""
    calls: dict[int, list[str]] = {}
    body = request_of(case, size, stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        # not `aiter_lines`: that ends lines at characters which JSON leaves as they are
        for line in (await answer.aread()).split(b"\n"):
            for delta in deltas(line):
                content += delta.get("content") or ""
                for call in delta.get("tool_calls") or []:
                    known = calls.setdefault(call["index"], ["", ""])
                    function = call.get("function") or {}
                    known[0] += function.get("name") or ""
                    known[1] += function.get("arguments") or ""
    return {"content": content or None, "calls": [calls[index] for index in sorted(calls)]}


def deltas(line: bytes) -> Iterator[Json]:
    """What one line of the stream adds. Raises ValueError for an error in it."""
    if not line.startswith(b"data: ") or line == b"data: [DONE]":
        return
    event = json.loads(line[6:])
    if "error" in event:
        raise ValueError(str(event["error"]))
    for choice in event["choices"]:
        yield choice["delta"]


async def read(client: httpx.AsyncClient, case: Json) -> Json:
    """What comes of one case, by way of reading; an exception is an answer too."""
    results: dict[str, Json] = {}
    for way, size in {"whole": 0, **WAYS}.items():
        try:
            reading = read_streamed(client, case, size) if size else read_whole(client, case)
            results[way] = await reading
        except (httpx.HTTPError, ValueError) as error:
            results[way] = {"exception": f"{type(error).__name__}: {error}"[:200]}
    return results


async def read_all(cases: list[Json], folder: Path) -> list[Json]:
    runtime_module: Any = importlib.import_module("dynamo.runtime")
    tokens = write_model(folder)
    runtime = runtime_module.DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    echo = Echo()
    serving = await serve(runtime, echo, folder)
    limit = asyncio.Semaphore(TOGETHER)

    async def one(client: httpx.AsyncClient, case: Json) -> Json:
        async with limit:
            return await read(client, case)

    try:
        async with (
            frontend() as url,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=ANSWER_SECONDS) as client,
        ):
            await ready(client)
            results = await asyncio.gather(*(one(client, case) for case in cases))
    finally:
        runtime.shutdown()
        await asyncio.wait(serving)
    told = {tuple(prompt) for prompt in echo.prompts}
    expected = {
        tuple(tokens.encode(case["text"], add_special_tokens=False))
        for case, result in zip(cases, results, strict=True)
        if "exception" not in result["whole"]
    }
    assert told >= expected, "the frontend's prompt is not the text of the case"
    return results


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    cases = json.loads(source.read_text())
    with tempfile.TemporaryDirectory() as scratch:
        discovery, folder = Path(scratch, "discovery"), Path(scratch, "model")
        discovery.mkdir()
        folder.mkdir()
        os.environ |= environment(discovery)
        results = asyncio.run(read_all(cases, folder))
    version = importlib.metadata.version("ai-dynamo-runtime")
    document = {"name": "Dynamo", "version": version, "how": HOW, "results": results}
    target.write_text(json.dumps(document, ensure_ascii=False, indent=1))


if __name__ == "__main__":
    main()
