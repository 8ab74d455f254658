import asyncio
import json
import signal
import sys

import httpx
import pytest


async def run(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "prime_inference.cli", "inference", "mock-engine", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_the_command_announces_itself_serves_and_stops_on_a_signal():
    process = await run("-o", "json", "--model", "a/b", "--behaviour", "status-503.first-1")
    assert process.stdout is not None
    announced = json.loads(await process.stdout.readline())
    assert announced["models"] == ["a/b"]
    async with httpx.AsyncClient(base_url=announced["base_url"]) as http:
        body = {"model": "a/b", "prompt": "x"}
        statuses = [(await http.post("/completions", json=body)).status_code for _ in range(2)]
    assert statuses == [503, 200]
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--behaviour", "cut-aftre-1"], b"cut-after"),
        (["-o", "xml"], b"text, json"),
        (["--port", "1", "--host", "203.0.113.1"], b"Cannot listen"),
    ],
)
async def test_what_cannot_be_is_refused_on_stderr(arguments: list[str], said: bytes):
    process = await run(*arguments)
    out, err = await process.communicate()
    assert process.returncode != 0
    assert said in err
    assert out == b""


async def test_the_command_lists_the_behaviours():
    process = await run("--behaviours")
    out, _ = await process.communicate()
    assert b"cut-after-N" in out
    assert process.returncode == 0
