"""Why a smaller prefill step shortens the queue: a barrier between data-parallel ranks.

    python benchmarks/prefill_step.py

Everything is SIMULATED, and nothing of it is vLLM: eight ranks of one DEP8 prefill replica. A
step takes from each rank's queue, in order, up to its budget of tokens; it lasts as long as the
fullest rank needs, since experts are shared and all ranks meet in every layer. What arrives
meanwhile waits for the next step. A turn goes to the rank that has its history (at random, as
sessions are), arrivals are Poisson. Seconds a token are the plan's roofline for GLM 5.3 on GB200.

The same arrivals meet each budget, with the barrier and without it. Load is the work that comes
over what eight ranks could do that never wait for each other.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from prime_inference.fleet.catalogue import find_model, find_spec
from prime_inference.fleet.hardware import GPUS
from prime_inference.fleet.parallelism import Parallelism
from prime_inference.fleet.speed import step_seconds

RANKS = 8
REQUESTS = 15_000
TURN_TOKENS, HISTORY_TOKENS = 6_000, 140_000
COLD_SHARE = 0.02  # of turns whose history is cached nowhere any more
OVERHEAD_SECONDS = 0.002  # of a step of any size, beside its tokens; an assumption
LOADS = (0.3, 0.5, 0.6, 0.7, 0.8)
BUDGETS = (8192, 4096)
SEED = 1

Sizes = Callable[[Random], float]
MIXES: dict[str, Sizes] = {
    "all 6,000 tokens": lambda random: TURN_TOKENS,
    "exponential, mean 6,000": lambda random: random.expovariate(1 / TURN_TOKENS),
    "exponential, 2 % cold": lambda random: (
        (HISTORY_TOKENS if random.random() < COLD_SHARE else 0)
        + random.expovariate(1 / TURN_TOKENS)
    ),
}


@dataclass(slots=True)
class Turn:
    """Times in seconds. `begun`: its first token enters a step; `first`: its prompt is done."""

    at: float
    rank: int
    left: int
    begun: float = -1.0
    first: float = -1.0


def turns(sizes: Sizes, gap_seconds: float) -> list[Turn]:
    """The same turns for every gap, closer together or farther apart."""
    random, now, made = Random(SEED), 0.0, []
    for _ in range(REQUESTS):
        now += random.expovariate(1) * gap_seconds
        made.append(Turn(now, random.randrange(RANKS), max(1, int(sizes(random)))))
    return made


def run(arrivals: Sequence[Turn], budget: int, token_seconds: float) -> None:
    """Fill in when each turn began and was done, ranks in lockstep."""
    queues: dict[int, deque[Turn]] = {one.rank: deque() for one in arrivals}
    now, at, waiting = 0.0, 0, 0
    while at < len(arrivals) or waiting:
        if not waiting:
            now = max(now, arrivals[at].at)
        while at < len(arrivals) and arrivals[at].at <= now:
            queues[arrivals[at].rank].append(arrivals[at])
            at, waiting = at + 1, waiting + 1
        finished: list[Turn] = []
        fullest = max(step(queue, budget, now, finished) for queue in queues.values())
        now += OVERHEAD_SECONDS + fullest * token_seconds
        waiting -= len(finished)
        for one in finished:
            one.first = now


def step(queue: deque[Turn], budget: int, now: float, finished: list[Turn]) -> int:
    """One rank's part of a step: how many tokens it takes."""
    room = budget
    while queue and room:
        one = queue[0]
        if one.begun < 0:
            one.begun = now
        taken = min(room, one.left)
        one.left -= taken
        room -= taken
        if not one.left:
            finished.append(queue.popleft())
    return budget - room


def waits(
    sizes: Sizes, gap: float, budget: int, token_seconds: float, *, barrier: bool = True
) -> tuple[float, float]:
    """Median queue wait and median time to the end of the prompt."""
    made = turns(sizes, gap)
    groups: Iterable[list[Turn]] = [made]
    if not barrier:
        groups = [[one for one in made if one.rank == rank] for rank in range(RANKS)]
    for group in groups:
        run(group, budget, token_seconds)
    return (
        statistics.median(one.begun - one.at for one in made),
        statistics.median(one.first - one.at for one in made),
    )


def main() -> None:
    spec = find_spec("glm-5.3-gb200")
    token_seconds = step_seconds(
        find_model(spec.model.architecture),
        GPUS[spec.hardware.gpu],
        Parallelism("DEP", RANKS),
        spec.model.routed_weights,
        1,
        HISTORY_TOKENS,
    )
    print(f"{token_seconds * BUDGETS[0] * 1000:.0f} ms for a step of {BUDGETS[0]} tokens\n")
    print("| turns | load | step | wait p50 ms | prompt p50 ms | without barrier: wait | prompt |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, sizes in MIXES.items():
        work = statistics.mean(one.left for one in turns(sizes, 1.0)) * token_seconds / RANKS
        for load in LOADS:
            for budget in BUDGETS:
                gap = work / load
                together = waits(sizes, gap, budget, token_seconds)
                apart = waits(sizes, gap, budget, token_seconds, barrier=False)
                cells = " | ".join(f"{one * 1000:,.0f}" for one in (*together, *apart))
                print(f"| {name} | {load:.1f} | {budget:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
