"""Closed-loop load of whole answers: wrk where it is installed, else a generator of ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import msgspec

from prime_inference.bench.gateway.machine import pinned

WRK_TIMEOUT_SECONDS = 60  # an answer that takes longer than LiteLLM's worst is an error


class Target(msgspec.Struct, frozen=True):
    """Where to send requests."""

    url: str
    api_key: str | None = None


class Load(msgspec.Struct, frozen=True):
    """What a generator saw: answers, seconds, latencies; `errors` are anything but a 200."""

    requests: int
    seconds: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    errors: int

    @property
    def per_second(self) -> float:
        return self.requests / self.seconds


class LoadFailed(Exception):
    """The generator itself did not run; the message is its last words."""


def generator_name() -> str:
    """Which generator `run_load` uses."""
    return "wrk" if shutil.which("wrk") else "prime_inference.bench.gateway.closed_loop"


def run_load(target: Target, body: Path, *, connections: int, seconds: float, core: int) -> Load:
    """Send `body` over `connections` at once, each as soon as its answer is there."""
    if shutil.which("wrk"):
        return _run_wrk(target, body, connections, seconds, core)
    arguments = [
        "--url", target.url, "--body", str(body), "--connections", str(connections),
        "--seconds", str(seconds),
    ]  # fmt: skip
    if target.api_key:
        arguments += ["--api-key", target.api_key]
    return msgspec.json.decode(run_module("closed_loop", arguments, core), type=Load)


def _run_wrk(target: Target, body: Path, connections: int, seconds: float, core: int) -> Load:
    environment = {**os.environ, "BENCH_BODY": str(body)}
    if target.api_key:
        environment["BENCH_API_KEY"] = target.api_key
    script = resources.files(__package__) / "post.lua"
    with resources.as_file(script) as path, pinned(core):
        finished = subprocess.run(
            ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s",
             f"--timeout={WRK_TIMEOUT_SECONDS}s", "-s", path, target.url],
            env=environment, capture_output=True, check=False,
        )  # fmt: skip
    lines = [line for line in finished.stdout.splitlines() if line.startswith(b"{")]
    if finished.returncode or not lines:
        raise LoadFailed((finished.stderr or finished.stdout).decode(errors="replace")[-500:])
    return msgspec.json.decode(lines[-1], type=Load)


def run_module(name: str, arguments: list[str], core: int) -> bytes:
    """Run a generator of this package on `core`; its standard output."""
    with pinned(core):
        finished = subprocess.run(
            [sys.executable, "-m", f"{__package__}.{name}", *arguments],
            capture_output=True, check=False,
        )  # fmt: skip
    if finished.returncode:
        raise LoadFailed(finished.stderr.decode(errors="replace")[-500:])
    return finished.stdout
