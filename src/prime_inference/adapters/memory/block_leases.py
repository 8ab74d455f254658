"""Block leases of one pool, as the store keeps them.

`adapters/redis/lua/lease_blocks.lua` is the same in Lua. docs/reliability.md, "Admission",
says why it is right; docs/reservations.md, what reservations add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from prime_inference.adapters.memory.reserved_blocks import (
    Holding,
    kept_back,
    recall,
    reserved_shares,
    slots_of,
)
from prime_inference.domain.sharing import banded_shares, batch_part
from prime_inference.ports.coordination import (
    NEWCOMERS_FRACTION,
    PROMPT_S,
    RETURN_S,
    SAFE_FLOOR,
    BlockAsk,
    BlockGrant,
)


@dataclass(slots=True)
class _Block:
    ask: BlockAsk
    grant: BlockGrant
    held: int  # the most the holder may have in flight until its next ask
    newcomer: bool  # came with nothing while the store was learning
    ends: float
    awaited: bool = False  # it ended while nobody was heard: its holder may be about to ask

    @property
    def holding(self) -> Holding:
        return Holding(self.ask, self.held)

    @property
    def entitled(self) -> BlockAsk:
        """Its ask, with what its holder keeps whatever it wants."""
        if self.ask.reservation or self.ask.interactive >= self.grant.safe:
            return self.ask
        return replace(self.ask, interactive=self.grant.safe)

    @property
    def batch_held(self) -> int:
        """The most batch requests that its holder may have in flight until its next ask."""
        return max(self.grant.batch, self.ask.has_batch)

    @property
    def lacks(self) -> bool:
        """Whether its holder was granted less than it wants."""
        return self.grant.granted < self.ask.interactive + self.ask.batch


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
        mine = self._blocks.get(ask.block)
        learning = now < self._learning_until
        others = [block for name, block in self._blocks.items() if name != ask.block]
        alike = [block for block in others if block.ask.reservation == ask.reservation]
        if mine is not None and ask.sequence <= mine.ask.sequence:
            return replace(mine.grant, holders=len(alike) + 1, learning=learning)
        capacity = min([ask.capacity, *(block.ask.capacity for block in others)])
        free = max(0, capacity - sum(block.held for block in others))
        slots = capacity
        if ask.reservation:
            slots = slots_of([Holding(ask, 0), *(block.holding for block in alike)])
        room = slots if ask.reservation or learning else self._unkept(others, capacity)
        free = min(free, max(0, room - sum(block.held for block in alike)))
        if mine is None:
            self._epoch += 1
        epoch = self._epoch if mine is None else mine.grant.epoch
        has_nothing = ask.has == ask.in_flight == ask.safe == 0
        newcomer = has_nothing if mine is None else mine.newcomer
        shares = {}
        if learning:
            total, batch = self._claimed(ask, alike, slots, newcomer)
        else:
            shares = self._shares([ask, *(block.entitled for block in alike)], room, now)
            total, batch = shares[ask.holder]
            if not ask.reservation:
                less = self._too_much_batch(batch, alike, room)
                total, batch = total - less, batch - less
        granted = min(total, free)
        safe = min(free, self._safe(ask, alike, capacity, learning, newcomer))
        held = max(granted, safe, ask.has, ask.in_flight, ask.safe)
        owes = ask.reservation and not learning
        in_use = sum(block.ask.in_flight for block in alike)
        grant = BlockGrant(
            epoch=epoch,
            granted=granted,
            batch=max(0, min(batch, granted - (total - batch))),
            holders=len(alike) + 1,
            learning=learning,
            recall=self._recall(Holding(ask, held), others, shares, capacity) if shares else 0,
            owed=max(0, min(total - batch, slots - in_use) - granted) if owes else 0,
            safe=safe,
            capacity=capacity,
            more_in_s=self._more_in(ask, granted, others, now, learning),
        )
        self._blocks[ask.block] = _Block(ask, grant, held, newcomer, now + ask.ttl_s)
        return grant

    def give_back(self, holder: str, sequence: int) -> None:
        """Drop a holder's blocks, but those that were asked for again since."""
        for name, block in list(self._blocks.items()):
            if block.ask.holder == holder and block.ask.sequence <= sequence:
                del self._blocks[name]

    def leases(self, now: float) -> dict[str, tuple[int, int]]:
        """Epoch, and slots counted against it, of every live lease, by the block's name."""
        now += max(0.0, self._latest - now)
        return {
            name: (block.grant.epoch, block.held)
            for name, block in self._blocks.items()
            if block.ends > now or self._is_awaited(block)
        }

    def _is_awaited(self, block: _Block) -> bool:
        """Whether a block that has ended may be in use, by who could not renew it.

        The store was not heard of shortly before its end, nor since: it may have been away.
        """
        return not block.awaited and self._latest < block.ends - PROMPT_S

    def _advance(self, now: float) -> None:
        step_back = self._latest - now
        if step_back > 0:  # all ends move with the clock, or dead holders would live on
            self._learning_until -= step_back
            for block in self._blocks.values():
                block.ends -= step_back
            self._latest = now
        for name, block in list(self._blocks.items()):
            if block.ends > now:
                continue
            if self._is_awaited(block):
                block.awaited, block.ends = True, now + RETURN_S
            else:
                del self._blocks[name]
        self._latest = now

    @staticmethod
    def _safe(
        ask: BlockAsk, alike: list[_Block], capacity: int, learning: bool, newcomer: bool
    ) -> int:
        """Slots that the holder keeps whatever it needs: few, where others lack some."""
        if learning:
            return min(ask.keep, 1) if newcomer else ask.safe
        lacking = any(block.lacks for block in alike)
        if ask.reservation:
            return 0 if lacking else ask.keep
        part = capacity // (len(alike) + 1)
        return min(ask.keep, max(1, part // SAFE_FLOOR) if lacking and part else part)

    @staticmethod
    def _too_much_batch(batch: int, alike: list[_Block], room: int) -> int:
        """What of a share for batch is in use by others, whose it was before."""
        held = sum(block.batch_held for block in alike)
        return min(batch, max(0, batch + held - batch_part(room)))

    def _more_in(
        self, ask: BlockAsk, granted: int, others: list[_Block], now: float, learning: bool
    ) -> float:
        if granted >= ask.interactive + ask.batch:
            return 0.0
        if learning:
            return self._learning_until - now
        largest = max(others, key=lambda block: (block.held, block.ask.block), default=None)
        return 0.0 if largest is None else min(ask.ttl_s, largest.ends - now)

    @staticmethod
    def _unkept(others: list[_Block], capacity: int) -> int:
        """Slots for everybody: all but those that reservations keep."""
        return max(0, capacity - kept_back(block.holding for block in others))

    @staticmethod
    def _recall(
        mine: Holding, others: list[_Block], shares: Mapping[str, tuple[int, int]], capacity: int
    ) -> int:
        reserved = [block.holding for block in others if block.ask.reservation]
        if mine.ask.reservation or not reserved:
            return 0
        alike = [block.holding for block in others if not block.ask.reservation]
        parts = {holder: total for holder, (total, _) in shares.items()}
        return recall(mine, alike, parts, reserved, capacity)

    @staticmethod
    def _claimed(
        ask: BlockAsk, others: list[_Block], capacity: int, newcomer: bool
    ) -> tuple[int, int]:
        """While learning: what the holder says it has; a newcomer, of what newcomers may have."""
        if not newcomer:
            total = max(ask.has, ask.in_flight, min(ask.safe, ask.interactive + ask.batch))
            return total, min(ask.batch, total)
        allowance = max(1, capacity // NEWCOMERS_FRACTION)
        allowance -= sum(block.grant.granted for block in others if block.newcomer)
        total = max(0, min(ask.interactive + ask.batch, allowance))
        return total, max(0, total - ask.interactive)

    @staticmethod
    def _shares(asks: list[BlockAsk], room: int, now: float) -> dict[str, tuple[int, int]]:
        """(all slots, of these for batch) of the holder of each; the first is who asks."""
        first, turn = asks[0], int(now / asks[0].ttl_s)
        asks = sorted(asks, key=lambda each: each.holder)
        if first.reservation:
            divided = reserved_shares(room, asks, turn)
        else:
            interactive = [each.interactive for each in asks]
            batch = [each.batch for each in asks]
            divided = banded_shares(first.sharing, room, interactive, batch, turn)
        return {each.holder: part for each, part in zip(asks, divided, strict=True)}
