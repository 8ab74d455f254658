"""Move the same KV blocks through NIXL over TCP loopback, fragmented and block-major.

    pip install nixl numpy
    PYTHONPATH=src python benchmarks/kv_transfer.py [--blocks 32] [--out FILE]

Two agents in host memory of one process, connected by UCX over the loopback interface. The
cache is GLM 5.2's with NVFP4 rows: 79 latent and 22 index regions, blocks of 64 tokens. The
blocks are scattered on both sides, so nothing but the layout makes runs long. Every transfer
is compared byte for byte. Shows what descriptors cost on this transport; an RDMA or CUDA IPC
transport has other constants.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from prime_inference.kvcache.layout import (
    INDEX_KEY_BYTES,
    Copy,
    PackedBlock,
    packed_copies,
    region_major_copies,
)
from prime_inference.kvcache.row import ROW_BYTES

BLOCK_TOKENS = 64
PAGES = (BLOCK_TOKENS * ROW_BYTES,) * 79 + (BLOCK_TOKENS * INDEX_KEY_BYTES,) * 22
REPEATS = 5
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """Medians of one layout: seconds to prepare descriptors, and to post and complete."""

    layout: str
    descriptors: int
    bytes_per_descriptor: int
    nbytes: int
    prepare_seconds: float
    transfer_seconds: float


def scattered(blocks: int) -> list[tuple[int, int]]:
    """Pairs of blocks of which no two are neighbours on either side."""
    return [(2 * i, 2 * (blocks - 1 - i)) for i in range(blocks)]


def measure(layout: str, copies: Sequence[Copy], cache_bytes: int) -> Result:
    """Transfer `REPEATS` times between two fresh agents."""
    from nixl._api import nixl_agent, nixl_agent_config

    source = np.random.default_rng(0).integers(0, 256, cache_bytes, dtype=np.uint8)
    target = np.zeros(cache_bytes, np.uint8)
    sender, receiver = (
        nixl_agent(f"{layout}-{side}", nixl_agent_config(backends=["UCX"]))
        for side in ("sender", "receiver")
    )
    for agent, memory in ((sender, source), (receiver, target)):
        agent.register_memory([(memory.ctypes.data, cache_bytes, 0, "")], mem_type="DRAM")
    name = sender.add_remote_agent(receiver.get_agent_metadata())
    here = [(source.ctypes.data + c.source, c.nbytes, 0) for c in copies]
    there = [(target.ctypes.data + c.target, c.nbytes, 0) for c in copies]
    prepares, transfers = [], []
    for _ in range(REPEATS + 1):  # the first connects
        target[:] = 0
        start = time.perf_counter()
        handle = sender.initialize_xfer(
            "WRITE",
            sender.get_xfer_descs(here, mem_type="DRAM"),
            sender.get_xfer_descs(there, mem_type="DRAM"),
            name,
        )
        ready = time.perf_counter()
        state = sender.transfer(handle)
        while state == "PROC":
            if time.perf_counter() - ready > TIMEOUT_SECONDS:
                raise SystemExit(f"{layout}: no completion in {TIMEOUT_SECONDS} s")
            state = sender.check_xfer_state(handle)
        done = time.perf_counter()
        if state != "DONE":
            raise SystemExit(f"{layout}: transfer ended as {state}")
        sender.release_xfer_handle(handle)
        for c in copies:
            moved = target[c.target : c.target + c.nbytes]
            if not np.array_equal(moved, source[c.source : c.source + c.nbytes]):
                raise SystemExit(f"{layout}: bytes differ")
        prepares.append(ready - start)
        transfers.append(done - ready)
    nbytes = sum(c.nbytes for c in copies)
    return Result(
        layout,
        len(copies),
        nbytes // len(copies),
        nbytes,
        float(np.median(prepares[1:])),
        float(np.median(transfers[1:])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=32, help="blocks of 64 tokens to move")
    parser.add_argument("--out", type=Path, help="also write the results as JSON")
    arguments = parser.parse_args()
    os.environ.setdefault("UCX_TLS", "tcp")
    os.environ.setdefault("UCX_NET_DEVICES", "lo")
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    pairs = scattered(arguments.blocks)
    room = 2 * arguments.blocks
    packed = PackedBlock(PAGES)
    results = [
        measure("layer-major", region_major_copies(PAGES, room, pairs), room * packed.nbytes),
        measure("block-major", packed_copies(packed, pairs), room * packed.nbytes),
    ]
    print("| layout | descriptors | bytes each | MB | prepare ms | transfer ms |")
    print("|---|---:|---:|---:|---:|---:|")
    for one in results:
        print(
            f"| {one.layout} | {one.descriptors} | {one.bytes_per_descriptor:,} | "
            f"{one.nbytes / 1e6:.1f} | {one.prepare_seconds * 1e3:.2f} | "
            f"{one.transfer_seconds * 1e3:.1f} |"
        )
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


if __name__ == "__main__":
    main()
