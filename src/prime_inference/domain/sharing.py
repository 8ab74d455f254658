"""How the slots of a deployment are divided between replicas that want more than there is.

The algorithms are doorman's (Google, youtube/doorman, doc/algorithms.md); its worked
examples are our tests. Here slots are whole and interactive traffic goes before batch.
`adapters/redis/lua/lease_blocks.lua` computes the same; the conformance suite compares them.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence

BATCH_FRACTION = 0.8  # Stripe keeps 20 % of its fleet for critical traffic


class Sharing(enum.StrEnum):
    """What happens when the wants do not fit."""

    STATIC = "static"  # each gets what it wants up to the whole capacity: first come, first served
    PROPORTIONAL = "proportional_share"  # an equal share, and of what is left in proportion to need
    FAIR = "fair_share"  # as many as possible satisfied; the others get the same


def shares(algorithm: Sharing, capacity: float, wants: Sequence[float]) -> list[float]:
    """What each of the clients gets of `capacity`, in their order.

    PROPORTIONAL and FAIR never hand out more than `capacity` in sum; STATIC may.
    """
    if algorithm is Sharing.STATIC:
        return [min(want, capacity) for want in wants]
    if _total(wants) <= capacity:
        return list(wants)
    if algorithm is Sharing.PROPORTIONAL:
        return _proportional(capacity, wants)
    return _fair(capacity, wants)


def _proportional(capacity: float, wants: Sequence[float]) -> list[float]:
    equal = capacity / len(wants)
    spare = _total([equal - want for want in wants if want < equal])
    need = _total([want - equal for want in wants if want > equal])
    return [
        want if want <= equal else equal + (want - equal) * spare / need
        for want in wants
    ]  # fmt: skip


def _fair(capacity: float, wants: Sequence[float]) -> list[float]:
    left, waiting, level = capacity, len(wants), 0.0
    for want in sorted(wants):
        level = left / waiting
        if want > level:
            break
        left -= want
        waiting -= 1
    return [min(want, level) for want in wants]


def _total(numbers: Sequence[float]) -> float:
    """Added one by one: `sum` rounds otherwise since Python 3.12, and Lua has to agree."""
    total = 0.0
    for number in numbers:
        total += number
    return total


def whole_shares(
    algorithm: Sharing, capacity: int, wants: Sequence[int], turn: int = 0
) -> list[int]:
    """`shares` in whole slots: rounded down, the rest by largest remainder.

    Equal remainders are served in an order that rotates with `turn`, so that with fewer slots
    than clients nobody stays without one for long.
    """
    exact = shares(algorithm, capacity, wants)
    whole = [math.floor(share) for share in exact]
    spare = min(capacity, sum(wants)) - sum(whole)
    count = len(wants)
    by_remainder = sorted(
        range(count), key=lambda i: (whole[i] - exact[i], (i - turn) % count)
    )  # fmt: skip
    for i in by_remainder:
        if spare <= 0:
            break
        if whole[i] < wants[i]:
            whole[i] += 1
            spare -= 1
    return whole


def batch_part(capacity: int) -> int:
    """Slots that batch may have at most, of `capacity` that is not 0."""
    return max(1, math.floor(capacity * BATCH_FRACTION))


def banded_shares(
    algorithm: Sharing,
    capacity: int,
    interactive: Sequence[int],
    batch: Sequence[int],
    turn: int = 0,
) -> list[tuple[int, int]]:
    """(all slots, of these for batch) of each client: interactive wants first.

    Batch shares what interactive does not want, and never more than `BATCH_FRACTION` of the
    capacity (but one slot, where there is only one).
    """
    first = whole_shares(algorithm, capacity, interactive, turn)
    left = max(0, capacity - sum(first))
    left = min(left, batch_part(capacity))
    second = whole_shares(algorithm, left, batch, turn)
    return [(a + b, b) for a, b in zip(first, second, strict=True)]
