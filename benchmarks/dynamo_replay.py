"""Topology and routing in Dynamo's own simulator, on agents' turns.

    DYN_LOG=error .envs/dynamo/bin/python benchmarks/dynamo_replay.py

Everything is SIMULATED: Dynamo 1.6.1's offline replay with the mocker's default timing model
(of no GPU in particular), its real router and scheduler cores. The arrivals are Poisson, seed
42; sessions have turns over a shared prefix. Says which way a choice goes, not how far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dynamo._core import run_mocker_synthetic_trace_replay

WORKERS = 4
SESSIONS = 400
TURNS = 4
INPUT_TOKENS, OUTPUT_TOKENS = 6000, 200  # agents' turns are 6K; their histories would be 140K
QUEUED_RATE = 9.0  # sessions a second: more than two workers prefill without a queue
SLA = {"sla_ttft_ms": 1000.0, "sla_itl_ms": 100.0}
COLUMNS = (
    ("TTFT p50 ms", "median_ttft_ms"),
    ("TTFT p90 ms", "p90_ttft_ms"),
    ("ITL p50 ms", "median_itl_ms"),
    ("ITL p90 ms", "p90_itl_ms"),
    ("goodput req/s", "goodput_request_throughput_rps"),
    ("reused", "prefix_cache_reused_ratio"),
)


def engine(**changes: Any) -> dict[str, Any]:
    base = {"block_size": 64, "num_gpu_blocks": 16_384, "max_num_batched_tokens": 8192}
    return {"engine": base | changes}


def replay(**changes: Any) -> Mapping[str, Any]:
    settings: dict[str, Any] = {
        "request_rate": 6.0,
        "turns_per_session": TURNS,
        "shared_prefix_ratio": 0.5,
        "num_prefix_groups": 8,
        "router_mode": "kv_router",
        **SLA,
    } | changes
    result = run_mocker_synthetic_trace_replay(INPUT_TOKENS, OUTPUT_TOKENS, SESSIONS, **settings)
    summary: Mapping[str, Any] = result.summary
    return summary


def together(**changes: Any) -> Mapping[str, Any]:
    """Four workers that prefill and decode."""
    return replay(**{"extra_engine_args": engine(), "num_workers": WORKERS} | changes)


def apart(step: int = 8192, **changes: Any) -> Mapping[str, Any]:
    """Two prefill and two decode workers in the place of four that do both."""
    return replay(
        prefill_engine_args=engine(max_num_batched_tokens=step, worker_type="prefill"),
        decode_engine_args=engine(worker_type="decode"),
        num_prefill_workers=WORKERS // 2,
        num_decode_workers=WORKERS // 2,
        **changes,
    )


def main() -> None:
    # 100 prefixes of 84 blocks: more than one worker holds beside what it works on, fewer than four
    scarce = {"num_gpu_blocks": 4096}
    prefixes = {"shared_prefix_ratio": 0.9, "num_prefix_groups": 100}
    # 30,712 bytes a token: the NVFP4 rows of GLM 5.3
    host = {
        "native_host_offload": {"num_host_blocks": 16_384},
        "kv_cache_bytes_per_token": 30_712,
    }
    cases = {
        "aggregated": together(),
        "disaggregated, prefill step 8K": apart(),
        "disaggregated, prefill step 4K": apart(4096),
        "with a queue, prefill step 8K": apart(request_rate=QUEUED_RATE),
        "with a queue, prefill step 4K": apart(4096, request_rate=QUEUED_RATE),
        "scarce cache, round-robin": together(
            extra_engine_args=engine(**scarce), router_mode="round_robin", **prefixes
        ),
        "scarce cache, KV-aware": together(extra_engine_args=engine(**scarce), **prefixes),
        "scarce cache, round-robin, host tier": together(
            extra_engine_args=engine(**scarce, **host), router_mode="round_robin", **prefixes
        ),
    }
    print("| case | " + " | ".join(title for title, _ in COLUMNS) + " |")
    print("|---|" + "---:|" * len(COLUMNS))
    for name, summary in cases.items():
        cells = [f"{summary.get(key, float('nan')):.2f}" for _, key in COLUMNS]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
