"""Keeps the turns of a conversation on the deployment that holds their KV cache.

Weighted rendezvous hashing: every replica ranks the deployments of a session in the same
order without talking to anybody, and a deployment that comes or goes moves only its own
sessions. Affinity yields to health: of the ranking, the first that is offered is taken.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

_MASK = (1 << 64) - 1


def session_key(tenant: str, session: str) -> int:
    """What the ranking depends on. Tenants' sessions of the same name are different sessions."""
    text = f"{len(tenant)}:{tenant}{session}"  # the length: ("a", "bc") is not ("ab", "c")
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


class SessionRing:
    """The ranking for one model's deployments. `weights` are their slots."""

    __slots__ = ("_seeds",)

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._seeds = {
            name: (session_key("", name), 1 / weight) for name, weight in weights.items() if weight
        }

    def ranking(self, key: int) -> list[str]:
        """All deployments, the session's own first; the same on every replica."""
        return sorted(self._seeds, key=lambda name: (self._score(key, name), name), reverse=True)

    def first(self, key: int, offered: Sequence[str]) -> list[str]:
        """`offered` (best first) with the session's deployment at the head.

        The head is the highest of the ranking among those offered: a session whose deployment
        is ejected goes to the same second choice from every replica, and comes back after.
        The rest keeps its order: it was made from load and health.
        """
        best, head = -math.inf, None
        for name in offered:
            if name in self._seeds:
                score = self._score(key, name)
                if head is None or (score, name) > (best, head):
                    best, head = score, name
        if head is None or head == offered[0]:
            return list(offered)
        return [head, *(name for name in offered if name != head)]

    def _score(self, key: int, name: str) -> float:
        """Logarithm of a uniform chance to the power of 1 / weight: the highest one wins."""
        seed, inverse_weight = self._seeds[name]
        return math.log(_uniform(key ^ seed)) * inverse_weight


def _uniform(bits: int) -> float:
    """In (0, 1], from splitmix64's finaliser: neighbouring keys have unrelated values."""
    bits = (bits + 0x9E3779B97F4A7C15) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((bits ^ (bits >> 31)) + 1) / (_MASK + 2)
