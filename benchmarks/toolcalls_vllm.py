"""Calls through the gateway from a vLLM whose model writes at random: does the grammar hold?

    PYTHON_WITH_VLLM benchmarks/upstream_parsers/tiny_model.py FOLDER
    PYTHON_WITH_VLLM -m vllm.entrypoints.openai.api_server --model FOLDER \\
        --served-model-name tiny --max-model-len 8192
    python -m benchmarks.toolcalls_vllm --upstream http://127.0.0.1:8000/v1 --sets 200

With real token masks, and nothing but them: the gateway sends the constraint, vLLM's xgrammar
enforces it, the gateway reads the text. Each generated set of tools is asked four times, as in
`toolcalls_local`, in each format in turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from benchmarks.tool_sets import tool_set
from benchmarks.toolcalls_local import WAYS, ask, problem, request
from prime_inference import compose
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.domain.models import Deployment, GatewayParser, Model
from prime_inference.toolcalls.format import load

Json = Any
CONTEXT_TOKENS = 8192
MOST_TOKENS = 3000  # a string without a limit ends by chance, about every 300 characters


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
            slots=8,
            upstream_model="tiny",
            parameters=compose.ENGINE_PARAMETERS["vllm"],
            tool_parser=GatewayParser(form),
        )
        for form in load()
    ]
    with tempfile.TemporaryDirectory() as folder:
        listen = compose.ListenOptions(Path(folder), port=0, control_port=0)
        catalog = MemoryCatalog(models, deployments)
        async with compose.listening(catalog, listen, lambda: None) as (describe, _):
            found = describe(models[0].id)
            key = {"authorization": f"Bearer {found.api_key}"}
            async with httpx.AsyncClient(
                base_url=found.base_url, headers=key, timeout=600
            ) as client:
                yield client


async def measure(upstream: str, sets: range) -> dict[str, Json]:
    """Counts by way of asking, and what was wrong."""
    counts: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    wrong: list[Json] = []
    formats = sorted(load())
    began = time.monotonic()

    async def one(client: httpx.AsyncClient, seed: int, way: str) -> None:
        tools, form = tool_set(seed), formats[seed % len(formats)]
        asked = request(tools, way, seed)
        asked |= {"model": f"tiny/{form}", "max_tokens": MOST_TOKENS, "temperature": 1}
        calls, finish = await ask(client, asked)
        counts[way]["calls"] += len(calls)
        if finish == "length":
            counts[way]["cut off"] += 1
        elif (found := problem(tools, asked, calls)) is None:
            counts[way]["valid"] += 1
        else:
            counts[way]["wrong"] += 1
            wrong.append(
                {"set": seed, "way": way, "format": form, "problem": found, "calls": calls}
            )

    async with gateway(upstream) as client:
        for seed in sets:
            await asyncio.gather(*(one(client, seed, way) for way in WAYS))
            if seed % 10 == 0:
                print(seed, {way: dict(count) for way, count in counts.items()}, flush=True)
    return {"ways": counts, "wrong": wrong, "seconds": round(time.monotonic() - began)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="seed of the first set")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    sets = range(options.first, options.first + options.sets)
    results = asyncio.run(measure(options.upstream, sets))
    text = json.dumps(results, indent=2, ensure_ascii=False)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    sys.exit(1 if results["wrong"] else 0)


if __name__ == "__main__":
    main()
