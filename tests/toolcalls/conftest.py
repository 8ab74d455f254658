"""A real llama.cpp with the default model, for grammars in its syntax."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prime_inference.cli.folders import cache_folder
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch

Complete = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def complete() -> Complete:
    """Completes a prompt; the request and the answer are llama.cpp's own."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # without type information
    params = xllamacpp.CommonParams()
    weights = fetch(SMOLLM2_135M, cache_folder(os.environ, Path.home()), lambda done, total: None)
    params.model.path = str(weights)
    params.n_ctx = 4096
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)

    def complete(**request: Any) -> dict[str, Any]:
        answer = server.handle_completions(request)
        assert isinstance(answer, dict)
        return answer

    return complete
