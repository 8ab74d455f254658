"""Calls through the gateway from a vLLM whose model writes at random: does the grammar hold?

    make test-toolcalls-vllm VLLM_SETS=200
    python -m benchmarks.toolcalls_vllm --python PYTHON_WITH_VLLM --sets 200

With real token masks, and nothing but them: the gateway sends the constraint, vLLM's xgrammar
enforces it, the gateway reads the text. Each generated set of tools is asked four times, as in
`toolcalls_local`, in each format in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from benchmarks.tool_sets import tool_set
from benchmarks.toolcalls_local import WAYS, ask, problem, request
from prime_inference import compose
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.domain.models import Deployment, GatewayParser, Model
from prime_inference.gateway.clocks import ClockLimits
from prime_inference.toolcalls.format import load

Json = Any
HOST = "127.0.0.1"
WRITER = Path(__file__).parent / "upstream_parsers" / "tiny_model.py"
START_SECONDS = 600  # 35 s on two free cores
CONTEXT_TOKENS = 16384
MOST_TOKENS = 8000  # a text without a limit ends by chance, about every 300 characters
# No clock of the gateway's is measured here, and the machine may be a busy one.
PATIENT = ClockLimits(connect=60, first_token=600, idle=600, tail=60, whole=1200)
SETS_AT_ONCE = 4  # vLLM's time for a token hardly depends on how many it makes at once


@contextmanager
def server(python: Path) -> Iterator[str]:
    """vLLM with a model of random weights; its base URL. Its last words follow an error."""
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryFile() as log,
    ):
        model = str(Path(scratch, "model"))
        subprocess.run([python, WRITER, model], check=True)
        command = [
            str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", model,
            "--served-model-name", "tiny", "--host", HOST, "--port", str(port),
            "--max-model-len", str(CONTEXT_TOKENS), "--enforce-eager",
        ]  # fmt: skip
        env = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONPATH": ""}
        serving = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            _await_health(f"http://{HOST}:{port}/health", serving)
            yield f"http://{HOST}:{port}/v1"
        except BaseException:
            log.seek(max(0, log.tell() - 8000))
            print(log.read().decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            if serving.poll() is None:
                os.killpg(serving.pid, signal.SIGTERM)
            serving.wait()


def _await_health(url: str, serving: subprocess.Popen[bytes]) -> None:
    """Return when the server answers. Raises SystemExit if it ends, or takes too long."""
    for _ in range(START_SECONDS):
        with suppress(httpx.HTTPError):
            if httpx.get(url, trust_env=False).is_success:
                return
        if serving.poll() is not None:
            raise SystemExit("vLLM ended before it answered")
        time.sleep(1)
    raise SystemExit(f"vLLM did not answer within {START_SECONDS} s")


@asynccontextmanager
async def gateway(upstream: str) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway with a model for each format, all of them on one vLLM."""
    models = [Model(f"tiny/{form}", "r", 0, CONTEXT_TOKENS, CONTEXT_TOKENS) for form in load()]
    deployments = [
        Deployment(
            id=form,
            model=f"tiny/{form}",
            datacenter="local",
            base_url=upstream,
            engine="vllm",
            slots=len(WAYS) * SETS_AT_ONCE,
            upstream_model="tiny",
            parameters=compose.ENGINE_PARAMETERS["vllm"],
            tool_parser=GatewayParser(form),
        )
        for form in load()
    ]
    with tempfile.TemporaryDirectory() as folder:
        listen = compose.ListenOptions(Path(folder), port=0, control_port=0, clocks=PATIENT)
        catalog = MemoryCatalog(models, deployments)
        async with compose.listening(catalog, listen, lambda: None) as (describe, _):
            found = describe(models[0].id)
            key = {"authorization": f"Bearer {found.api_key}"}
            async with httpx.AsyncClient(
                base_url=found.base_url, headers=key, timeout=PATIENT.whole
            ) as client:
                yield client


async def measure(upstream: str, sets: range) -> dict[str, Json]:
    """Counts by way of asking, and what was wrong."""
    counts: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    wrong: list[Json] = []
    cut: list[Json] = []
    formats = sorted(load())
    began = time.monotonic()

    async def one(client: httpx.AsyncClient, seed: int, way: str) -> None:
        tools, form = tool_set(seed), formats[seed % len(formats)]
        asked = request(tools, way, seed)
        asked |= {"model": f"tiny/{form}", "max_tokens": MOST_TOKENS, "temperature": 1}
        # A seed whose prompt is read in two steps ends vLLM 0.31 on a CPU: "CPU Generator does
        # not use offset".
        del asked["seed"]
        calls, finish = await ask(client, asked)
        counts[way]["calls"] += len(calls)
        if finish == "length":
            counts[way]["cut off"] += 1
            cut.append({"set": seed, "way": way, "format": form})
        elif (found := problem(tools, asked, calls)) is None:
            counts[way]["valid"] += 1
        else:
            counts[way]["wrong"] += 1
            wrong.append(
                {"set": seed, "way": way, "format": form, "problem": found, "calls": calls}
            )

    turns = asyncio.Semaphore(SETS_AT_ONCE)

    async def one_set(client: httpx.AsyncClient, seed: int) -> None:
        async with turns:
            await asyncio.gather(*(one(client, seed, way) for way in WAYS))
        if seed % 10 == 0:
            print(seed, {way: dict(count) for way, count in counts.items()}, flush=True)

    async with gateway(upstream) as client:
        await asyncio.gather(*(one_set(client, seed) for seed in sets))
    seconds = round(time.monotonic() - began)
    return {"ways": counts, "wrong": wrong, "cut off": cut, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with vLLM")
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="seed of the first set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = range(options.first, options.first + options.sets)
    with server(options.python) as upstream:
        results = asyncio.run(measure(upstream, sets))
    text = json.dumps(results, indent=2, ensure_ascii=False)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    sys.exit(1 if results["wrong"] else 0)


if __name__ == "__main__":
    main()
