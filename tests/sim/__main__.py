"""Run simulations: `python -m tests.sim --seeds 500 --start 0`."""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter

from tests.sim.simulation import Simulation


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    ends: Counter[str] = Counter()
    calls = simulated = 0.0
    for seed in range(options.start, options.start + options.seeds):
        simulation = Simulation(seed)
        try:
            simulation.run()
        except Exception:
            traceback.print_exc()
            print(f"\nseed {seed} failed; replay: make sim SEEDS=1 SEED_START={seed}")
            return 1
        ends += simulation.books.ends
        calls += sum(replica.calls for replica in simulation.replicas)
        simulated += simulation.world.now
    seconds = time.perf_counter() - began
    told = ", ".join(f"{count} {how}" for how, count in ends.most_common())
    print(
        f"{options.seeds} seeds from {options.start}: all invariants hold. {ends.total()} requests"
        f" ({told}) in {simulated / 3600:.1f} h of simulated time, {seconds:.1f} s of real time"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
