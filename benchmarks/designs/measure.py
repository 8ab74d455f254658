"""Measures server halves and client halves of a gateway: `make bench-designs`.

The numbers behind docs/decisions/0002-http-halves.md. Uses the campaign of the gateway's
own benchmark; each pair of halves is a subject of it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.designs.handler import API_KEY
from prime_inference.bench.gateway import campaign, report
from prime_inference.bench.gateway.load import Target
from prime_inference.bench.gateway.process import Child, free_port
from prime_inference.bench.gateway.results import Settings
from prime_inference.bench.gateway.subjects import DIRECT, Running
from prime_inference.bench.gateway.upstream import Upstream, answers

PYTHON = Path(".envs/designs/bin/python").absolute()
RESULTS = Path("benchmarks/results")
SETTINGS = Settings(
    rounds=5, load_seconds=4, stream_seconds=3, stream_rounds=3, connections=(1, 64),
    latency_streams=64, most_streams=0,  # CPU for an event says more, and sooner
)  # fmt: skip


@dataclass(frozen=True)
class Design:
    """One pair of halves."""

    server: str
    client: str

    @property
    def name(self) -> str:
        return f"{self.server} + {self.client}"

    def missing(self) -> str | None:
        return None if PYTHON.exists() else f"no {PYTHON}"

    def version(self) -> str:
        return "-"

    def start(self, upstream: Upstream, folder: Path, core: int) -> Running:
        port = free_port()
        command: list[str | Path] = [
            PYTHON, "-m", "benchmarks.designs.servers", self.server, self.client,
            upstream.base_url, str(port),
        ]  # fmt: skip
        child = Child(command, core=core, log=folder / f"{self.server}-{self.client}.log")
        child.wait_until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        return Running(self.name, Target(url, API_KEY), child)


DESIGNS = [
    Design("ours", "ours"),
    Design("uvicorn", "ours"),
    Design("granian", "ours"),
    Design("ours", "aiohttp"),
    Design("ours", "httpx"),
    Design("uvicorn", "httpx"),
]


def main() -> None:
    settings = SETTINGS
    if "--quick" in sys.argv:
        settings = msgspec.structs.replace(
            settings, rounds=1, stream_rounds=1, load_seconds=2, stream_seconds=1
        )
    results = campaign.run([DIRECT, *DESIGNS], settings, _say, ours=DESIGNS[0].name)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "designs.json").write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    (RESULTS / "designs.md").write_text(report.markdown(results, "Halves of a gateway"))
    print(report.markdown(results, "Halves of a gateway"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
