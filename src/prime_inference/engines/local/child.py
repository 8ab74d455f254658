"""The engine's process: llama.cpp's server on loopback, until its parent is gone.

Run as `python -m prime_inference.engines.local.child` with the fields of `EngineSettings`
as one JSON argument. Writes one line to standard output when it listens. It ends when
standard input does, and the kernel kills it when its parent dies: no parent, no engine.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import msgspec

from prime_inference.engines.local.settings import PROMPT_CACHE_MIB, EngineSettings
from prime_inference.engines.parent import die_with_parent

LOG_WARNINGS = 2  # llama.cpp's verbosity: no line per request, and never a prompt


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=EngineSettings)
    die_with_parent(settings.parent)
    server = start(settings)
    print(server.listening_address, flush=True)  # noqa: T201  # the supervisor reads it
    while os.read(0, 1024):
        pass
    os._exit(0)  # the server's threads have nothing to save


def start(settings: EngineSettings) -> Any:
    """llama.cpp's server in threads of this process; raises RuntimeError if it cannot load."""
    # loads llama.cpp: a second that only this process spends; it names nothing to type checkers
    xllamacpp: Any = importlib.import_module("xllamacpp")

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.model_file
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings.port
    parameters.reuse_port = True  # the supervisor holds the port while we are down
    parameters.cors_origins = ""  # no page in a browser of this machine may read answers
    parameters.ui = False
    parameters.verbosity = LOG_WARNINGS
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True

    # every slot can hold a whole context whatever the others do: in a cache shared by them
    # (kv_unified) a long request makes another fail in the middle of its answer
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.context_tokens * settings.slots
    parameters.cache_ram_mib = PROMPT_CACHE_MIB
    parameters.n_batch = parameters.n_ubatch = max(settings.batch_tokens, settings.slots)
    # at a depth of 4,000 tokens a core wrote 38 tokens/s without flash attention, 21 with it
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.cpuparams.n_threads = settings.threads

    # embeddings beside chat: the last token's state is the one pooling whose input can be
    # cut into batches, and chat is as fast as without
    parameters.embedding = True
    parameters.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_LAST
    return xllamacpp.Server(parameters)


if __name__ == "__main__":
    main()
