"""What stands behind the subjects: the mock engine, or nginx with one fixed answer."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec

from prime_inference.bench.gateway import nginx
from prime_inference.bench.gateway.process import Child, free_port

MODEL = "mock/plain"
MESSAGES = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Say in one sentence what a gateway does."},
]
WHOLE_BODY = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16}
"""About the 150 bytes of research/gateway-performance; the answer is 16 tokens."""

STREAM_BODY = {"model": MODEL, "messages": MESSAGES, "stream": True}


@dataclass(frozen=True, slots=True)
class Upstream:
    """A running upstream; `base_url` ends in /v1."""

    name: str
    base_url: str
    child: Child

    @property
    def authority(self) -> str:
        """Its host:port."""
        return urlsplit(self.base_url).netloc


def start_mock(folder: Path, core: int, *, pace_ms: float) -> Upstream:
    """The mock engine in a process of its own. Raises StartFailed."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable, "-m", "prime_inference.cli", "inference", "mock-engine",
        "--model", MODEL, "--pace-ms", str(pace_ms), "--output", "json",
    ]  # fmt: skip
    child = Child(command, core=core, log=folder / "mock-engine.log")
    child.wait_until(lambda: "\n" in child.output)
    base_url = msgspec.json.decode(child.output.splitlines()[0])["base_url"]
    return Upstream("mock engine", base_url, child)


def start_fixed(folder: Path, core: int, mock: Upstream) -> Upstream:
    """nginx, answering what `mock` answers to the body of the benchmark. Raises StartFailed.

    Only for whole answers, where a Python upstream on the core of the load generator would
    be what is measured.
    """
    folder.mkdir(parents=True, exist_ok=True)
    answer = httpx.post(f"{mock.base_url}/chat/completions", json=WHOLE_BODY).raise_for_status()
    models = httpx.get(f"{mock.base_url}/models").raise_for_status()
    port = free_port()
    command = nginx.fixed_answer(folder, port, answer.text, models.text)
    child = Child(command, core=core, log=folder / "nginx.log")
    base_url = f"http://127.0.0.1:{port}/v1"
    child.wait_until(lambda: answers(f"{base_url}/models"))
    return Upstream("nginx, fixed answer", base_url, child)


def answers(url: str, headers: dict[str, str] | None = None) -> bool:
    """Whether a GET is answered with a 200."""
    try:
        return httpx.get(url, headers=headers, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False
