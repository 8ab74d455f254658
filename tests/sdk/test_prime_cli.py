"""The `prime` command that users have, unchanged, pointed at the gateway by its environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prime_inference.engines.mock import expected_text
from tests.gateway.processes import Processes
from tests.gateway.running import MODEL

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ".envs/prime-cli"
QUESTION = "Tell me about a river"
ANSWER = expected_text([{"role": "user", "content": QUESTION}])

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def command() -> str:
    """The command in its environment, which is installed if it is not yet there."""
    environment = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    subprocess.run(
        ["make", "-s", f"{ENVIRONMENT}/ready"], cwd=ROOT, env=environment, check=True, timeout=300
    )
    return str(ROOT / ENVIRONMENT / "bin" / "prime")


@pytest.fixture
def prime(command: str, processes: Processes, tmp_path: Path) -> Run:
    """Runs `prime ARGS` as somebody with an empty home folder."""

    def run(*args: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "LANG": "C.UTF-8",
            "COLUMNS": "500",
            "PRIME_DISABLE_VERSION_CHECK": "1",
            "PRIME_API_KEY": processes.key,
            "PRIME_INFERENCE_URL": processes.base_url,
        }
        return subprocess.run(
            [command, *args],
            input=stdin,
            capture_output=True,
            text=True,
            env={**environment, **env},
            timeout=30,
            check=False,
        )

    return run


pytestmark = pytest.mark.timeout(300)  # the first run may have to install the command


def test_models_are_listed(prime: Run):
    listed = prime("inference", "models")
    assert listed.returncode == 0
    assert MODEL in listed.stdout
    assert "4.1k" in listed.stdout  # the context window


def test_models_are_listed_as_json(prime: Run):
    listed = prime("inference", "models", "-o", "json")
    assert listed.returncode == 0
    (model,) = json.loads(listed.stdout)["data"]
    assert model["id"] == MODEL
    assert model["pricing"]["input_usd_per_mtok"] == 0


def test_models_can_be_listed_without_a_key(prime: Run):
    assert prime("inference", "models", PRIME_API_KEY="").returncode == 0


def test_chat_prints_the_answer(prime: Run):
    chat = prime("inference", "chat", MODEL, QUESTION)
    assert chat.returncode == 0
    assert ANSWER in chat.stdout


def test_chat_streams_the_answer(prime: Run, processes: Processes):
    processes.behave("pace-2ms")
    chat = prime("inference", "chat", MODEL, QUESTION, "--stream")
    assert chat.returncode == 0
    assert chat.stdout.strip() == ANSWER
    assert processes.requests()[-1]["body"]["stream"] is True


def test_chat_takes_its_message_and_options(prime: Run, processes: Processes):
    options = ["-s", "Be brief.", "-t", "0.5", "--max-tokens", "7"]
    chat = prime("inference", "chat", MODEL, *options, stdin=QUESTION)
    assert chat.returncode == 0
    sent = processes.requests()[-1]["body"]
    assert sent["temperature"] == 0.5
    assert sent["max_tokens"] == 7
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]


def test_chat_gives_the_whole_answer_as_json(prime: Run):
    chat = prime("inference", "chat", MODEL, QUESTION, "-o", "json")
    assert chat.returncode == 0
    answer = json.loads(chat.stdout)
    assert answer["choices"][0]["message"]["content"] == ANSWER
    assert answer["usage"]["completion_tokens"] == 64


@pytest.mark.parametrize("flags", [[], ["--stream"]], ids=["whole", "stream"])
def test_a_wrong_key_is_an_error(prime: Run, flags: list[str]):
    chat = prime("inference", "chat", MODEL, QUESTION, *flags, PRIME_API_KEY="pi_live_wrong")
    assert chat.returncode == 1
    assert "API key" in chat.stdout + chat.stderr
    assert ANSWER not in chat.stdout


def test_an_unknown_model_is_an_error_with_the_nearest_name(prime: Run):
    chat = prime("inference", "chat", "acme/eco-1", QUESTION)
    assert chat.returncode == 1
    assert f"Did you mean {MODEL}" in chat.stdout + chat.stderr
