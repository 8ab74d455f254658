"""What `prime inference serve` says when its model cannot be served: one sentence."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from prime_inference.cli.folders import cache_folder
from prime_inference.engines.local.weights import SMOLLM2_135M, fetch

from .conftest import COMMAND


@pytest.fixture(scope="module")
def model_file() -> Path:
    return fetch(SMOLLM2_135M, cache_folder(os.environ, Path.home()), lambda done, total: None)


def what_serve_says(environment: dict[str, str], state_dir: Path, *options: str) -> str:
    """The one line of a start that fails."""
    done = subprocess.run(
        [*COMMAND, "inference", "serve", "--port", "0", "--control-port", "0",
         "--state-dir", str(state_dir), *options],
        capture_output=True, text=True, env=environment, timeout=50, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    return line


def test_weights_that_are_cut_short_name_the_file_and_the_log(
    environment: dict[str, str], tmp_path: Path, model_file: Path
):
    cut = tmp_path / "cut.gguf"
    with model_file.open("rb") as whole:
        cut.write_bytes(whole.read(20_000_000))
    line = what_serve_says(environment, tmp_path / "state", "--model", str(cut))
    log_file = tmp_path / "state" / "engine.log"
    assert line.startswith(f"Error: The engine could not load {cut} ")
    assert line.endswith(f"llama.cpp's log is in {log_file}.")
    assert "model is corrupted or incomplete" in log_file.read_text()


def test_a_head_that_is_damaged_names_the_file(environment: dict[str, str], tmp_path: Path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 5000)
    line = what_serve_says(environment, tmp_path / "state", "--model", str(damaged))
    assert line.startswith(f"Error: {damaged} is ")


@pytest.mark.parametrize("tokens", [10**12, 10**30])
def test_a_context_that_no_machine_holds_names_the_option(
    environment: dict[str, str], tmp_path: Path, model_file: Path, tokens: int
):
    options = ["--model", str(model_file), "--context-tokens", str(tokens)]
    line = what_serve_says(environment, tmp_path / "state", *options)
    assert line.startswith("Error: A context of ")
    assert "Use a smaller --context-tokens" in line
