"""Block leases of one pool, as the store keeps them.

`adapters/redis/lua/lease_blocks.lua` is the same in Lua. docs/reliability.md, "Admission",
says why it is right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prime_inference.domain.sharing import banded_shares
from prime_inference.ports.coordination import NEWCOMERS_FRACTION, BlockAsk, BlockGrant


@dataclass(slots=True)
class _Block:
    ask: BlockAsk
    grant: BlockGrant
    held: int  # the most the holder may have in flight until its next ask
    newcomer: bool  # came with nothing while the store was learning
    ends: float

    @property
    def counts(self) -> bool:
        """Whether its holder has slots or wants any; otherwise it only says that it is there."""
        return self.held + self.ask.interactive + self.ask.batch > 0


class BlockPool:
    """All blocks of one pool. `now` is the store's clock; steps backwards are evened out."""

    def __init__(self, now: float, learning_s: float) -> None:
        self._blocks: dict[str, _Block] = {}
        self._learning_until = now + learning_s
        self._latest = now
        self._epoch = 0

    def lease(self, ask: BlockAsk, now: float) -> BlockGrant:
        """Grant `min(share, what nobody else holds)`."""
        self._advance(now)
        mine = self._blocks.get(ask.holder)
        learning = now < self._learning_until
        if mine is not None and ask.sequence <= mine.ask.sequence:
            return replace(mine.grant, holders=len(self._blocks), learning=learning)
        others = [block for holder, block in self._blocks.items() if holder != ask.holder]
        capacity = min([ask.capacity, *(block.ask.capacity for block in others if block.counts)])
        free = max(0, capacity - sum(block.held for block in others))
        if mine is None:
            self._epoch += 1
        epoch = self._epoch if mine is None else mine.grant.epoch
        newcomer = ask.has == 0 and ask.in_flight == 0 if mine is None else mine.newcomer
        if learning:
            total, batch = self._claimed(ask, others, capacity, newcomer)
        else:
            total, batch = self._share(ask, others, capacity, now)
        granted = min(total, free)
        grant = BlockGrant(
            epoch=epoch,
            granted=granted,
            batch=max(0, min(batch, granted - (total - batch))),
            holders=len(others) + 1,
            learning=learning,
        )
        held = max(granted, ask.has, ask.in_flight)
        self._blocks[ask.holder] = _Block(ask, grant, held, newcomer, now + ask.ttl_s)
        return grant

    def give_back(self, holder: str, sequence: int) -> None:
        """Drop a holder's block, unless it was asked for again since."""
        block = self._blocks.get(holder)
        if block is not None and block.ask.sequence <= sequence:
            del self._blocks[holder]

    def leases(self, now: float) -> dict[str, tuple[int, int]]:
        """Epoch, and slots counted against it, of every live lease."""
        self._advance(now)
        return {name: (block.grant.epoch, block.held) for name, block in self._blocks.items()}

    def _advance(self, now: float) -> None:
        step_back = self._latest - now
        if step_back > 0:  # all ends move with the clock, or dead holders would live on
            self._learning_until -= step_back
            for block in self._blocks.values():
                block.ends -= step_back
        self._latest = now
        ended = [holder for holder, block in self._blocks.items() if block.ends <= now]
        for holder in ended:
            del self._blocks[holder]

    @staticmethod
    def _claimed(
        ask: BlockAsk, others: list[_Block], capacity: int, newcomer: bool
    ) -> tuple[int, int]:
        """While learning: what the holder says it has; a newcomer, of what newcomers may have."""
        if not newcomer:
            total = max(ask.has, ask.in_flight)
            return total, min(ask.batch, total)
        allowance = max(1, capacity // NEWCOMERS_FRACTION)
        allowance -= sum(block.grant.granted for block in others if block.newcomer)
        total = max(0, min(ask.interactive + ask.batch, allowance))
        return total, max(0, total - ask.interactive)

    @staticmethod
    def _share(ask: BlockAsk, others: list[_Block], capacity: int, now: float) -> tuple[int, int]:
        asks = sorted([ask, *(block.ask for block in others)], key=lambda each: each.holder)
        divided = banded_shares(
            ask.sharing,
            capacity,
            [each.interactive for each in asks],
            [each.batch for each in asks],
            turn=int(now / ask.ttl_s),
        )
        return divided[asks.index(ask)]
