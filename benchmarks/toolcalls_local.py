"""Calls of the default model on the local engine: are they valid, wherever they must come?

    python -m benchmarks.toolcalls_local --sets 40 --json results.json

Starts engine and gateway as `prime inference serve` does. Each generated set of tools is asked
four times: a call required, required without parallel calls, a function named, and named over a
stream. A call counts as valid if jsonschema accepts its arguments: not the validator that the
gateway uses itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema

from benchmarks.tool_sets import tool_set
from prime_inference import compose
from prime_inference.cli.folders import cache_folder
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch

Json = Any
MODEL = compose.DEFAULT_MODEL_ID
CONTEXT_TOKENS = 8192
MOST_TOKENS = 1500  # a text without a limit can go on until the tokens end
WAYS = ("required", "required, one", "named", "named, streamed")


@asynccontextmanager
async def serving(model_file: Path) -> AsyncIterator[httpx.AsyncClient]:
    """The default model behind a gateway."""
    engine = LocalEngine(model_file, slots=1, context_tokens=CONTEXT_TOKENS)
    await engine.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            options = compose.ServeOptions(Path(folder), Path(folder))
            catalog = compose.local_catalog(options, engine, model_file, CONTEXT_TOKENS)
            listen = compose.ListenOptions(Path(folder), port=0, control_port=0)
            async with compose.listening(catalog, listen, lambda: None) as (describe, _):
                found = describe(MODEL)
                key = {"authorization": f"Bearer {found.api_key}"}
                async with httpx.AsyncClient(
                    base_url=found.base_url, headers=key, timeout=600
                ) as client:
                    yield client
    finally:
        await engine.stop()


def request(tools: list[Json], way: str, seed: int) -> dict[str, Json]:
    """What is asked, one of `WAYS`."""
    function = tools[seed % len(tools)]["function"]["name"]
    named = {"type": "function", "function": {"name": function}}
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Please use {function} for me now."}],
        "tools": tools,
        "tool_choice": named if way.startswith("named") else "required",
        "parallel_tool_calls": way == "required",
        "max_tokens": MOST_TOKENS,
        "seed": seed,
        "stream": way.endswith("streamed"),
    }


async def ask(client: httpx.AsyncClient, body: dict[str, Json]) -> tuple[list[Json], str]:
    """The calls of an answer, names and arguments, and its finish reason."""
    response = await client.post("chat/completions", json=body)
    if not response.is_success:
        raise SystemExit(f"{response.status_code}: {response.text}")
    if not body["stream"]:
        choice = response.json()["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        return [call["function"] for call in calls], choice["finish_reason"]
    lines = response.text.split("\n\n")  # some are comments that keep the connection open
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    choices = [json.loads(line)["choices"][0] for line in data if line != "[DONE]"]
    function = {"name": "", "arguments": ""}
    for choice in choices:
        for call in choice["delta"].get("tool_calls", []):
            assert call["index"] == 0
            for key, text in call["function"].items():
                function[key] += text
    return [function], choices[-1]["finish_reason"]


def problem(tools: list[Json], body: dict[str, Json], calls: list[Json]) -> str | None:
    """What is wrong with the calls of an answer that ended by itself."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    choice = body["tool_choice"]
    if not calls:
        return "no call"
    if not body["parallel_tool_calls"] and len(calls) > 1:
        return "several calls"
    if isinstance(choice, dict) and calls[0]["name"] != choice["function"]["name"]:
        return "another function"
    for call in calls:
        if call["name"] not in schemas:
            return "unknown name"
        try:
            arguments = json.loads(call["arguments"])
            jsonschema.Draft202012Validator(schemas[call["name"]]).validate(arguments)
        except ValueError:
            return "no JSON"
        except jsonschema.ValidationError as error:
            return f"schema: {error.message[:80]}"
    return None


async def measure(sets: Iterable[int], model_file: Path, most_tokens: int) -> dict[str, Json]:
    """Counts by way of asking: valid, cut off by the limit, and what was wrong."""
    counts: dict[str, Counter[str]] = {way: Counter() for way in WAYS}
    wrong = []
    cut = []
    began = time.monotonic()
    async with serving(model_file) as client:
        for seed in sets:
            tools = tool_set(seed)
            for way in WAYS:
                body = request(tools, way, seed) | {"max_tokens": most_tokens}
                calls, finish = await ask(client, body)
                counts[way]["calls"] += len(calls)
                if finish == "length":
                    counts[way]["cut off"] += 1
                    last = calls[-1]["arguments"][-80:] if calls else None
                    cut.append({"set": seed, "way": way, "last words": last})
                elif (found := problem(tools, body, calls)) is None:
                    counts[way]["valid"] += 1
                else:
                    counts[way]["wrong"] += 1
                    wrong.append({"set": seed, "way": way, "problem": found, "calls": calls})
            print(seed, {way: dict(count) for way, count in counts.items()}, flush=True)
        url = str(client.base_url) + f"models/{MODEL}/endpoints"
        rate = (await client.get(url)).json()["data"]["endpoints"][0]
    return {
        "ways": counts,
        "wrong": wrong,
        "cut off": cut,
        "rate": rate["tool_call_error_rate_last_2h"],
        "seconds": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=40)
    parser.add_argument("--first", type=int, default=1, help="seed of the first set")
    parser.add_argument("--tokens", type=int, default=MOST_TOKENS, help="of an answer, at most")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    weights = fetch(SMOLLM2_135M, cache_folder(os.environ, Path.home()), lambda done, total: None)
    seeds = range(options.first, options.first + options.sets)
    results = asyncio.run(measure(seeds, weights, options.tokens))
    text = json.dumps(results, indent=2, ensure_ascii=False)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    sys.exit(1 if results["wrong"] else 0)


if __name__ == "__main__":
    main()
