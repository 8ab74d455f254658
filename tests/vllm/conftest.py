"""Tests that need vLLM's CPU build: `make test-vllm`.

PRIME_VLLM_PYTHON names the interpreter that has it; without, nothing here is collected.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

PYTHON = os.environ.get("PRIME_VLLM_PYTHON", "")

collect_ignore_glob = [] if PYTHON else ["test_*.py"]


@pytest.fixture(scope="session")
def vllm_python() -> str:
    return str(Path(PYTHON).absolute())  # not resolved: that would leave its environment
