"""The engine's process: llama.cpp's server on loopback, until its parent is gone.

Run as `python -m prime_inference.engines.local.child` with the fields of `EngineSettings`
as one JSON argument. Writes one line to standard output when it listens. It ends when
standard input does, and the kernel kills it when its parent dies: no parent, no engine.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
from typing import Any

import msgspec

from prime_inference.engines.local.settings import EngineSettings

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=EngineSettings)
    die_with_parent(settings.parent)
    # a Ctrl-C on the terminal goes to the whole process group; the supervisor decides
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = start(settings)
    print(server.listening_address, flush=True)  # noqa: T201  # the supervisor reads it
    while os.read(0, 1024):
        pass
    os._exit(0)  # the server's threads have nothing to save


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies, and look whether it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def start(settings: EngineSettings) -> Any:
    """llama.cpp's server in threads of this process; raises RuntimeError if it cannot load."""
    # loads llama.cpp: a second that only this process spends; it names nothing to type checkers
    xllamacpp: Any = importlib.import_module("xllamacpp")

    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings.model_file
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = settings.port
    parameters.n_parallel = settings.slots
    parameters.n_ctx = settings.context_tokens * settings.slots
    parameters.n_batch = parameters.n_ubatch = settings.batch_tokens
    parameters.cpuparams.n_threads = settings.threads
    parameters.cpuparams.poll = 0  # waiting threads sleep: spinning ones starve the gateway
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = True
    return xllamacpp.Server(parameters)


if __name__ == "__main__":
    main()
