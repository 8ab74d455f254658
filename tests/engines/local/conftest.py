"""The default model, fetched once into the cache folder that the product itself uses."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from prime_inference.cli.folders import cache_folder
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch

CONTEXT_TOKENS = 4096


@pytest.fixture(scope="session")
def model_file() -> Path:
    return fetch(SMOLLM2_135M, cache_folder(os.environ, Path.home()), lambda done, total: None)


@pytest_asyncio.fixture
async def engine(model_file: Path) -> AsyncIterator[LocalEngine]:
    engine = LocalEngine(model_file, slots=2, context_tokens=CONTEXT_TOKENS)
    await engine.start()
    yield engine
    await engine.stop()
