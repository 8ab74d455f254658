"""The engine's process: ready, restarted, stopped, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from prime_inference.engines.local.settings import engine_threads
from prime_inference.engines.local.supervisor import EngineFailed, LocalEngine

QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4}


async def ask(engine: LocalEngine) -> httpx.Response:
    async with httpx.AsyncClient(timeout=30) as client:
        return await client.post(f"{engine.base_url}/chat/completions", json=QUESTION)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        await asyncio.sleep(0.02)


async def test_a_started_engine_answers_at_once(engine: LocalEngine):
    assert engine.state == "ready"
    answer = await ask(engine)
    assert answer.json()["usage"]["completion_tokens"] == 4


async def test_a_crash_is_an_error_to_the_request_in_flight_and_no_more(engine: LocalEngine):
    first, address = engine.pid, engine.base_url
    assert first is not None
    long = {**QUESTION, "max_tokens": 3000, "ignore_eos": True}
    async with httpx.AsyncClient(timeout=30) as client:
        request = asyncio.create_task(client.post(f"{address}/chat/completions", json=long))
        await asyncio.sleep(0.5)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await request
    await until(lambda: engine.state == "ready" and engine.restarts == 1)
    assert engine.pid != first
    assert engine.base_url == address
    assert (await ask(engine)).status_code == 200


async def test_a_stopped_engine_leaves_no_process(model_file: Path):
    engine = LocalEngine(model_file, slots=1, context_tokens=512)
    await engine.start()
    pid = engine.pid
    assert pid is not None
    await engine.stop()
    assert engine.state == "stopped"
    assert not alive(pid)


async def test_a_file_that_is_no_model_is_an_error_with_the_engines_words(tmp_path: Path):
    file = tmp_path / "noise.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    engine = LocalEngine(file, slots=1, context_tokens=512)
    with pytest.raises(EngineFailed) as failure:
        await engine.start()
    assert failure.value.log_lines
    assert engine.state == "stopped"


async def test_an_engine_does_not_outlive_a_parent_that_is_killed(model_file: Path):
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(model_file), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    await parent.wait()
    await until(lambda: not alive(pid), 5)


PARENT = """
import asyncio, sys
from pathlib import Path
from prime_inference.engines.local.supervisor import LocalEngine

async def main():
    engine = LocalEngine(Path(sys.argv[1]), slots=1, context_tokens=512)
    await engine.start()
    print(engine.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (64, 63)])
def test_a_core_is_left_for_the_gateway(cores: int, threads: int):
    assert engine_threads(cores) == threads
