"""Reserved slots among the blocks of one pool (docs/reservations.md, "Slots").

`adapters/redis/lua/lease_blocks.lua` computes the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prime_inference.domain.sharing import Sharing, whole_shares
from prime_inference.ports.coordination import BlockAsk


@dataclass(frozen=True, slots=True)
class Holding:
    """A block: what was asked last, and what is counted against it."""

    ask: BlockAsk
    held: int


def slots_of(holdings: Sequence[Holding]) -> int:
    """Slots of one reservation; the least counts while replicas disagree."""
    return min((each.ask.reserved for each in holdings), default=0)


def by_reservation(holdings: Iterable[Holding]) -> Mapping[str, list[Holding]]:
    """Holdings of each reservation, without those of what everybody shares."""
    found: dict[str, list[Holding]] = defaultdict(list)
    for each in holdings:
        if each.ask.reservation:
            found[each.ask.reservation].append(each)
    return found


def kept_back(holdings: Iterable[Holding]) -> int:
    """Slots that are not lent: reservations need them, or had better have them at hand."""
    return sum(
        min(slots_of(group), sum(_wanted(each.ask) for each in group))
        for group in by_reservation(holdings).values()
    )


def reserved_shares(slots: int, asks: Sequence[BlockAsk], turn: int) -> list[tuple[int, int]]:
    """(all slots, of these beyond what is needed) of each block of one reservation."""
    needs = whole_shares(Sharing.FAIR, slots, [ask.interactive for ask in asks], turn)
    besides = whole_shares(
        Sharing.FAIR, slots - sum(needs), [ask.batch for ask in asks], turn
    )  # fmt: skip
    return [(need + more, more) for need, more in zip(needs, besides, strict=True)]


def recall(
    mine: Holding, alike: Sequence[Holding], shares: Mapping[str, int],
    reserved: Sequence[Holding], capacity: int,
) -> int:  # fmt: skip
    """How many requests of `mine`, a block of shared slots, are in the way of who reserved them.

    `alike` are the other such blocks, `shares` what the holder of each may have. What is held
    beyond a share and not in use is given up without ending anything.
    """
    owed = sum(
        max(0, min(slots_of(group), sum(each.ask.interactive for each in group)) - _held(group))
        for group in by_reservation(reserved).values()
    )
    blocks = sorted([mine, *alike], key=lambda each: each.ask.holder)
    stays = sum(max(each.ask.in_flight, min(each.held, shares[each.ask.holder])) for each in blocks)
    lacking = min(owed, owed + _held(reserved) + stays - capacity)
    if lacking <= 0:
        return 0
    excess = [max(0, each.ask.in_flight - shares[each.ask.holder]) for each in blocks]
    return whole_shares(Sharing.FAIR, lacking, excess)[blocks.index(mine)]


def _wanted(ask: BlockAsk) -> int:
    return max(ask.kept, ask.interactive + ask.batch)


def _held(holdings: Iterable[Holding]) -> int:
    return sum(each.held for each in holdings)
