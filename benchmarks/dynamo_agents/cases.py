"""What is compared: one datacenter of the example, and variants of it."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

AGGREGATED = str(Path(__file__).with_name("aggregated.toml"))

SPEEDUP = 0.2
"""The mocker's time, stretched five times: at its own pace a prefill of a miniature prompt takes
some 100 ms, no more than what two shared cores add to it."""

GPU_BLOCKS = 3_000
"""Of 16 tokens, of each worker: 48,000 tokens, eleven miniature sessions of 4,400. Two workers
hold the sessions of a point between them, and neither holds all of them."""

HOST_BLOCKS = 12_000
"""Four times as many, as host memory beside a GPU is."""


class Case(Struct, frozen=True):
    """A deployment: a spec of the catalogue or a file, and what is changed of it (TOML)."""

    name: str
    spec: str = "mocker"  # what examples/two-datacenters-dynamo.toml runs in each datacenter
    router: str = "kv"
    host_blocks: int = 0

    def fleet(self, tokenizer: Path) -> str:
        """The fleet's file. Sessions do not stick to workers: what the router does is compared."""
        return f"""
name = "bench-{self.name}"

[gateway]
port = 0
control_port = 0

[[datacenter]]
id = "dc-a"

[[deployment]]
id = "tiny"
datacenter = "dc-a"
spec = "{self.spec}"

[deployment.changes.model]
source = "{tokenizer}"

[deployment.changes.router]
mode = "{self.router}"
session_affinity_seconds = 0

[deployment.changes.mocker]
speedup = {SPEEDUP}
gpu_blocks = {GPU_BLOCKS}
host_blocks = {self.host_blocks}
"""


CASES = (
    Case("kv-aware"),
    Case("round-robin", router="round-robin"),
    Case("aggregated", spec=AGGREGATED),
    Case("kv-aware-host", host_blocks=HOST_BLOCKS),
    Case("round-robin-host", router="round-robin", host_blocks=HOST_BLOCKS),
)

PAIRS = (
    ("round-robin", "kv-aware"),
    ("aggregated", "kv-aware"),
    ("kv-aware", "kv-aware-host"),
    ("round-robin", "round-robin-host"),
)
"""Which cases are compared: from the first to the second."""
