"""Mock engine and gateway as the child processes that an operator runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from .running import MODEL

COMMAND = [sys.executable, "-m", "prime_inference.cli", "inference"]
STOP_SECONDS = 10


@dataclass
class Processes:
    """A gateway that runs, the engine behind it, and what they wrote."""

    base_url: str
    control_url: str
    key: str
    engine_url: str  # of the mock engine's own paths
    folder: Path

    def behave(self, behaviour: str) -> None:
        """From now on the engine treats every request like this."""
        wish = {"behaviour": behaviour}
        httpx.post(f"{self.engine_url}/mock/behaviour", json=wish).raise_for_status()

    def requests(self) -> list[dict[str, Any]]:
        """What the engine was asked since the last `reset`."""
        requests: list[dict[str, Any]] = httpx.get(f"{self.engine_url}/mock/requests").json()[
            "requests"
        ]
        return requests

    def reset(self) -> None:
        """Let the engine behave, and forget what it was asked."""
        self.behave("")
        httpx.post(f"{self.engine_url}/mock/reset").raise_for_status()


@contextlib.contextmanager
def child(folder: Path, name: str, *args: str) -> Iterator[dict[str, Any]]:
    """Run `prime inference ARGS -o json`; yields the line it announces itself with.

    What it writes goes to `NAME.out` and `NAME.err`. It is stopped as by Ctrl-C, and has
    to end by itself.
    """
    environment = {**os.environ, "HOME": str(folder), "PYTHONWARNINGS": "default"}
    with (folder / f"{name}.out").open("w+b") as out, (folder / f"{name}.err").open("wb") as err:
        process = subprocess.Popen(
            [*COMMAND, *args, "--output", "json"],
            stdout=subprocess.PIPE,
            stderr=err,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, (folder / f"{name}.err").read_text()
            yield json.loads(line)
            process.send_signal(signal.SIGINT)
            out.write(process.communicate(timeout=STOP_SECONDS)[0])
            assert process.returncode == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()


@contextlib.contextmanager
def child_processes(folder: Path, *gateway_options: str) -> Iterator[Processes]:
    """A mock engine and a gateway in front of it."""
    with (
        child(folder, "engine", "mock-engine", "--context-tokens", "4096") as engine,
        child(
            folder,
            "gateway",
            "gateway",
            *("--upstream", engine["base_url"], "--model-id", MODEL, "--context-tokens", "4096"),
            *("--port", "0", "--control-port", "0", "--state-dir", str(folder / "state")),
            *gateway_options,
        ) as gateway,
    ):
        yield Processes(
            gateway["base_url"],
            gateway["control_url"],
            gateway["api_key"],
            engine["base_url"].removesuffix("/v1"),
            folder,
        )
