"""The things under test: how each is found, started and asked.

All stand between the same load and the same upstream, with one worker. Peers live in
environments of their own under `.envs/`, made by `make bench-gateway` from the pinned
versions in `benchmarks/peers/`.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

import prime_inference
from prime_inference.bench.gateway import nginx
from prime_inference.bench.gateway.load import Target
from prime_inference.bench.gateway.process import Child, free_port
from prime_inference.bench.gateway.upstream import MODEL, Upstream, answers

ENVIRONMENTS = Path(".envs")
LITELLM_KEY = "sk-bench"

LITELLM_CONFIG = """\
model_list:
  - model_name: {model}
    litellm_params: {{model: "openai/{model}", api_base: "{base_url}", api_key: none}}
general_settings: {{master_key: {key}}}
litellm_settings: {{num_retries: 2, request_timeout: 60, telemetry: false}}
"""


@dataclass(frozen=True, slots=True)
class Running:
    """A started subject; the direct one has no process of its own."""

    name: str
    target: Target
    child: Child | None

    def stop(self) -> None:
        if self.child is not None:
            self.child.stop()


class Subject(Protocol):
    """Something that takes chat completions and passes them to an upstream."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Why it cannot be measured here; None: it can."""
        ...

    def version(self) -> str: ...

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        """Start it and wait until it answers. Raises StartFailed."""
        ...


class Direct:
    """Nothing in between: the floor of every number."""

    name = "direct"

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return "-"

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        return Running(self.name, Target(f"{upstream.base_url}/chat/completions"), None)


class Ours:
    """`prime inference gateway` as anyone would start it: nothing is turned off."""

    name = "prime-inference"

    def missing(self) -> str | None:
        return None

    def version(self) -> str:
        return prime_inference.__version__

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        command: list[str | Path] = [
            sys.executable, "-m", "prime_inference.cli", "inference", "gateway",
            "--upstream", upstream.base_url, "--model-id", MODEL, "--port", str(free_port()),
            "--control-port", str(free_port()), "--state-dir", folder / "state",
            "--output", "json",
        ]  # fmt: skip
        child = Child(command, core=core, log=folder / f"{self.name}.log")
        child.wait_until(lambda: "\n" in child.output)
        announced = msgspec.json.decode(child.output.splitlines()[0])
        url = f"{announced['base_url']}/chat/completions"
        return Running(self.name, Target(url, announced["api_key"]), child)


@dataclass(frozen=True, slots=True)
class _Peer:
    """What peers from the package index share."""

    environment: str
    package: str

    @property
    def name(self) -> str:
        return self.environment

    @property
    def bin(self) -> Path:
        return (ENVIRONMENTS / self.environment / "bin").absolute()

    def missing(self) -> str | None:
        if (ENVIRONMENTS / self.environment / "ready").exists():
            return None
        return f"not installed in {ENVIRONMENTS / self.environment}"

    def version(self) -> str:
        code = f"import importlib.metadata as m; print(m.version({self.package!r}))"
        finished = subprocess.run(
            [self.bin / "python", "-c", code], capture_output=True, text=True, check=False
        )
        return finished.stdout.strip()


class RustRouter(_Peer):
    """vllm-router and sglang-router: the same ancestry, the same flags."""

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        port = free_port()
        launch = ["launch"] if self.name == "sglang-router" else []
        command: list[str | Path] = [
            self.bin / self.name, *launch, "--worker-urls", f"http://{upstream.authority}",
            "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(port),
            "--prometheus-port", str(free_port()), "--log-level", "error",
        ]  # fmt: skip
        child = Child(command, core=core, log=folder / f"{self.name}.log")
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/v1/models"))
        return Running(self.name, Target(f"http://127.0.0.1:{port}/v1/chat/completions"), child)


class LiteLlm(_Peer):
    """The LiteLLM proxy with a master key and retries, without a database."""

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        port = free_port()
        configuration = folder / "litellm.yaml"
        configuration.write_text(
            LITELLM_CONFIG.format(model=MODEL, base_url=upstream.base_url, key=LITELLM_KEY)
        )
        command: list[str | Path] = [
            self.bin / "litellm", "--config", configuration, "--host", "127.0.0.1",
            "--port", str(port), "--num_workers", "1",
        ]  # fmt: skip
        quiet = {"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        child = Child(command, core=core, log=folder / f"{self.name}.log", environment=quiet)
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"))
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return Running(self.name, Target(url, LITELLM_KEY), child)


class NginxProxy:
    """`proxy_pass` with kept connections: no parsing, no policy, the ceiling for a proxy."""

    name = "nginx"

    def missing(self) -> str | None:
        return nginx.missing()

    def version(self) -> str:
        return nginx.version()

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        port = free_port()
        own = folder / "proxy"
        own.mkdir(exist_ok=True)
        command = nginx.proxy(own, port, upstream.authority)
        child = Child(command, core=core, log=folder / f"{self.name}.log")
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/v1/models"))
        return Running(self.name, Target(f"http://127.0.0.1:{port}/v1/chat/completions"), child)


DIRECT = Direct()
OURS = Ours()
PEERS: tuple[Subject, ...] = (
    RustRouter("vllm-router", "vllm-router"),
    RustRouter("sglang-router", "sglang-router"),
    NginxProxy(),
    LiteLlm("litellm", "litellm"),
)
