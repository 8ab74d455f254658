"""`python -m prime_inference.engines.dynamo`: a Dynamo worker with a real model, on a CPU.

The only module that needs Dynamo; it is imported when the command runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import logging
import os
import signal
from pathlib import Path
from typing import Any

from prime_inference.engines.dynamo.tokenizer import write_model_folder
from prime_inference.engines.dynamo.worker import Worker
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch

ENDPOINT = "backend.generate"
DEFAULT_MODEL = "smollm2-135m-instruct"
"""The local engine's default model, fetched once into the cache folder."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="prime_inference.engines.dynamo", allow_abbrev=False)
    parser.add_argument("--model-path", required=True, help=f"{DEFAULT_MODEL}, or a .gguf file")
    parser.add_argument("--model-name", required=True)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--context-tokens", type=int, default=2048)
    parser.add_argument("--block-size", type=int, default=16)
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(serve(parser.parse_args()))


async def serve(options: argparse.Namespace) -> None:
    """Start the engine, register the model with Dynamo, serve until SIGTERM."""
    model_file = _weights(options.model_path)
    folder = model_file.parent / f"{model_file.stem}.dynamo"
    write_model_folder(model_file, folder, options.context_tokens)
    engine = LocalEngine(model_file, slots=options.slots, context_tokens=options.context_tokens)
    await engine.start()
    worker = Worker(f"{engine.base_url.removesuffix('/v1')}/completion", options.context_tokens)
    try:
        await _register_and_serve(options, worker, folder)
    finally:
        await worker.close()
        await engine.stop()


async def _register_and_serve(options: argparse.Namespace, worker: Worker, folder: Path) -> None:
    llm: Any = importlib.import_module("dynamo.llm")
    runtime_module: Any = importlib.import_module("dynamo.runtime")
    loop = asyncio.get_running_loop()
    runtime = runtime_module.DistributedRuntime(
        loop,
        os.environ.get("DYN_DISCOVERY_BACKEND", "file"),
        os.environ.get("DYN_REQUEST_PLANE", "tcp"),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, runtime.shutdown)  # it waits for answers in flight
    endpoint = runtime.endpoint(f"{os.environ.get('DYN_NAMESPACE', 'dynamo')}.{ENDPOINT}")
    settings = llm.ModelRuntimeConfig()
    settings.context_length = options.context_tokens
    settings.max_num_seqs = options.slots
    settings.kv_event_publishing_enabled = False  # llama.cpp does not tell what it keeps
    await llm.register_model(
        llm.ModelInput.Tokens,
        llm.ModelType.Chat | llm.ModelType.Completions,
        endpoint,
        str(folder),
        options.model_name,
        worker_type=llm.WorkerType.Aggregated,
        kv_cache_block_size=options.block_size,
        runtime_config=settings,
    )
    with contextlib.suppress(asyncio.CancelledError):
        await endpoint.serve_endpoint(worker.generate, graceful_shutdown=True)


def _weights(path: str) -> Path:
    """The model's file. Raises WeightsUnavailable."""
    if path != DEFAULT_MODEL:
        return Path(path)
    named = os.environ.get("PRIME_CACHE_DIR")
    cache = Path(named) if named else Path.home() / ".cache" / "prime-inference"
    return fetch(SMOLLM2_135M, cache, lambda done, total: None)


if __name__ == "__main__":
    main()
