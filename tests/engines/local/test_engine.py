"""The engine's process: ready, restarted, stopped, never left behind."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from prime_inference.engines.local.settings import engine_threads
from prime_inference.engines.local.supervisor import EngineFailed, LocalEngine
from tests.engines.local.conftest import CONTEXT_TOKENS

QUESTION = {
    "messages": [{"role": "user", "content": "Say hello."}],
    "max_tokens": 4,
    "ignore_eos": True,  # the answer has four tokens whatever the model would rather say
}


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
    long = {**QUESTION, "max_tokens": 3000}
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


async def test_an_engine_that_is_stuck_is_replaced(model_file: Path):
    engine = LocalEngine(
        model_file, slots=1, context_tokens=512, probe_seconds=0.2, stuck_seconds=3.0
    )
    await engine.start()
    first = engine.pid
    # a grammar of so many branches holds the decoding thread for hours
    body = {**QUESTION, "json_schema": {"enum": [f"value {number}" for number in range(20_000)]}}
    try:
        async with httpx.AsyncClient(timeout=60) as client:
            with pytest.raises(httpx.TransportError):
                await client.post(f"{engine.base_url}/chat/completions", json=body)
        await until(lambda: engine.state == "ready" and engine.restarts == 1)
        assert engine.pid != first
        assert (await ask(engine)).status_code == 200
    finally:
        await engine.stop()


async def test_a_stopped_engine_gives_up_its_port(model_file: Path):
    engine = LocalEngine(model_file, slots=1, context_tokens=512)
    await engine.start()
    address = httpx.URL(engine.base_url)
    await engine.stop()
    with socket.create_server((address.host, address.port or 0)):
        pass  # the port is free again


async def test_no_other_program_can_take_the_engines_port_while_it_is_down(engine: LocalEngine):
    address = httpx.URL(engine.base_url)
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.state == "restarting")
    with pytest.raises(OSError, match="in use"):
        socket.create_server((address.host, address.port or 0))
    await until(lambda: engine.state == "ready")


async def test_every_slot_can_hold_a_whole_context(engine: LocalEngine):
    async with httpx.AsyncClient(timeout=30) as client:
        answer = await client.get(engine.base_url.removesuffix("/v1") + "/props")
    properties = answer.json()
    assert properties["total_slots"] == 2
    assert properties["default_generation_settings"]["n_ctx"] == CONTEXT_TOKENS


def test_the_engines_threads_sleep_while_they_wait(engine: LocalEngine):
    environment = Path(f"/proc/{engine.pid}/environ").read_bytes().split(b"\0")
    assert b"OMP_WAIT_POLICY=PASSIVE" in environment


async def test_a_ctrl_c_on_the_terminal_does_not_reach_the_engine(engine: LocalEngine):
    assert engine.pid is not None
    assert os.getpgid(engine.pid) != os.getpgid(0)


async def test_an_embedding_has_unit_length_and_takes_a_long_input(engine: LocalEngine):
    body = {"input": "word " * 100}
    async with httpx.AsyncClient(timeout=30) as client:
        answer = (await client.post(f"{engine.base_url}/embeddings", json=body)).json()
    vector = answer["data"][0]["embedding"]
    assert math.isclose(sum(number * number for number in vector), 1.0, rel_tol=1e-3)
    assert answer["usage"]["prompt_tokens"] == 101


async def test_an_engine_that_cannot_load_again_is_tried_until_it_can(
    model_file: Path, tmp_path: Path
):
    file = tmp_path / "model.gguf"
    file.symlink_to(model_file)
    engine = LocalEngine(file, slots=1, context_tokens=512)
    await engine.start()
    assert engine.pid is not None
    file.unlink()
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.state == "restarting")
    await asyncio.sleep(1.5)
    assert engine.state == "restarting"
    file.symlink_to(model_file)
    await until(lambda: engine.state == "ready")
    assert (await ask(engine)).status_code == 200
    await engine.stop()


async def test_an_engine_stopped_while_it_waits_to_start_again_stays_stopped(engine: LocalEngine):
    assert engine.pid is not None
    os.kill(engine.pid, signal.SIGKILL)
    await until(lambda: engine.state == "restarting")
    await engine.stop()
    assert engine.state == "stopped"
    assert engine.pid is None


async def test_a_stopped_engine_leaves_no_process(model_file: Path):
    engine = LocalEngine(model_file, slots=1, context_tokens=512)
    await engine.start()
    pid = engine.pid
    assert pid is not None
    await engine.stop()
    assert engine.state == "stopped"
    with pytest.raises(ProcessLookupError):  # a zombie would take the signal
        os.kill(pid, 0)


async def test_a_start_that_is_given_up_leaves_no_process(model_file: Path):
    engine = LocalEngine(model_file, slots=1, context_tokens=512)
    start = asyncio.create_task(engine.start())
    await until(lambda: engine.pid is not None)
    pid = engine.pid
    assert pid is not None
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_file_that_is_no_model_is_one_sentence_that_names_the_log(tmp_path: Path):
    file, log_file = tmp_path / "noise.gguf", tmp_path / "engine.log"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    engine = LocalEngine(file, slots=1, context_tokens=512, log_file=log_file)
    with pytest.raises(EngineFailed) as failure:
        await engine.start()
    assert engine.state == "stopped"
    message = str(failure.value)
    assert "\n" not in message
    assert str(file) in message
    assert message.endswith(f"llama.cpp's log is in {log_file}.")
    assert failure.value.log_lines == log_file.read_text().splitlines()
    assert "failed to load model" in log_file.read_text()


async def test_a_log_that_cannot_be_written_is_not_named(tmp_path: Path):
    file = tmp_path / "noise.gguf"
    file.write_bytes(b"GGUF" + b"\0" * 100)
    log_file = tmp_path / "absent" / "engine.log"
    engine = LocalEngine(file, slots=1, context_tokens=512, log_file=log_file)
    with pytest.raises(EngineFailed) as failure:
        await engine.start()
    assert "llama.cpp's log" not in str(failure.value)


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
