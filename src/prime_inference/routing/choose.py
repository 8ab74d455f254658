"""Which deployments may serve a request, best first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What is known of a deployment at the moment of choice."""

    @property
    def load(self) -> float:
        """Requests in flight per slot."""
        ...


C = TypeVar("C", bound=Candidate)


def order(candidates: Iterable[C]) -> Sequence[C]:
    """Least loaded first; ties keep the catalogue's order."""
    return sorted(candidates, key=lambda candidate: candidate.load)
