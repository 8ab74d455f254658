"""Which trees are played when: lanes of a closed loop, or starts of an open one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

from prime_inference.bench.agents.blocks import SeenBlocks
from prime_inference.bench.agents.plan import Options
from prime_inference.bench.agents.play import Play, PlayOptions
from prime_inference.bench.agents.sender import Sender
from prime_inference.bench.agents.workload import Session, Workload


class Trees:
    """Hands out plays: every tree of the workload once, in a seeded order, then again.

    Where block ids are the whole workload's, plays of one round share a marker and a cache,
    so that trees go on sharing blocks.
    """

    def __init__(self, workload: Workload, sender: Sender, options: PlayOptions) -> None:
        self._workload = workload
        self._sender = sender
        self._options = options
        self._number = 0
        self._round = 0
        self._rng = random.Random(f"trees {options.seed}")
        self._order = self._rounds()
        self._seen = SeenBlocks()

    def __iter__(self) -> Iterator[Play]:
        return self

    def __next__(self) -> Play:
        tree = next(self._order)
        number, self._number = self._number, self._number + 1
        shared = self._workload.scope == "workload"
        return Play(
            tree, number, self._sender, self._options,
            scope=self._workload.name if shared else tree.id,
            marker=f"round {self._round}" if shared else f"play {number}",
            seen=self._seen if shared else None,
        )  # fmt: skip

    def _rounds(self) -> Iterator[Session]:
        while True:
            order = list(self._workload.sessions)
            self._rng.shuffle(order)
            yield from order
            self._round += 1
            self._seen = SeenBlocks()


@dataclass(slots=True)
class _Start:
    """Where a lane's first tree begins: turn `turn`, `wait` seconds into profiling."""

    play: Play
    turn: int
    wait: float


class Lanes:
    """A closed loop of `count` lanes, each playing one tree after another."""

    def __init__(self, trees: Trees, count: int, options: Options, seed: int) -> None:
        self._trees = trees
        self._options = options
        rng = random.Random(f"starts {seed}")
        self._starts = [self._start(next(trees), rng) for _ in range(count)]

    def _start(self, play: Play, rng: random.Random) -> _Start:
        """The turn after a random moment of the recorded session.

        What is left of the delay before that turn is a random share of it: the moment lies
        anywhere between two turns.
        """
        turns = play.tree.turns
        moment = turns[0].start + rng.uniform(*self._options.start_window) * play.tree.seconds
        index = next((n for n, turn in enumerate(turns) if turn.start >= moment), len(turns) - 1)
        after_extra = min(len(turns) - 1, index + self._options.warmup_requests)
        wait = rng.random() * turns[after_extra].delay if after_extra else 0.0
        return _Start(play, after_extra, wait)

    async def warm_up(self) -> None:
        """The turn before each starting point and the extra ones, all lanes at once."""
        await asyncio.gather(*(self._warm(start) for start in self._starts))
        for start in self._starts:
            start.play.prepare(start.turn)

    async def _warm(self, start: _Start) -> None:
        first = max(0, start.turn - self._options.warmup_requests - 1)
        await start.play.warm_up(first, start.turn - first)

    async def run(self, start: float) -> None:
        """Play until the profiling phase, which begins at `start`, is over."""
        deadline = start + self._options.seconds
        await asyncio.gather(*(self._lane(s, start, deadline) for s in self._starts))

    async def _lane(self, first: _Start, start: float, deadline: float) -> None:
        goes_on = await first.play.run(begin=first.turn, due=start + first.wait, deadline=deadline)
        for play in self._trees:
            if not goes_on:
                return
            goes_on = await play.run(due=play.now, deadline=deadline)


class OpenSessions:
    """Sessions that start at Poisson times, whatever the server does."""

    def __init__(self, trees: Trees, rate: float, options: Options, seed: int) -> None:
        self._trees = trees
        self._rate = rate
        self._options = options
        self._rng = random.Random(f"open {seed}")

    async def run(self, start: float) -> None:
        """Start sessions until the profiling phase is over, and wait for what runs."""
        deadline = start + self._options.seconds
        due = start
        async with asyncio.TaskGroup() as group:
            while (due := due + self._rng.expovariate(self._rate)) < deadline:
                play = next(self._trees)
                await asyncio.sleep(due - play.now)
                group.create_task(play.run(due=due, schedule=due, deadline=deadline))
