"""What a replica wants of the coordination store: produced by `Guard`, performed by `Runner`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prime_inference.ports.coordination import (
    BlockAsk,
    BlockGrant,
    BreakerReading,
    BreakerRecord,
    ProbeAsk,
    ProbeGrant,
    ProbeResult,
    Trip,
)


@dataclass(frozen=True, slots=True)
class LeaseBlocks:
    """Ask for blocks of several deployments; leases are measured from `sent_at`."""

    asks: tuple[BlockAsk, ...]
    sent_at: float


@dataclass(frozen=True, slots=True)
class ReturnBlocks:
    """Give blocks back: nothing is in flight under them and nothing will be."""

    holder: str
    pools: tuple[str, ...]
    sequence: int  # of the holder's asks: a pool that comes back is not given away afterwards


@dataclass(frozen=True, slots=True)
class ReadBreakers:
    """Read what push may have missed, and whether it is heard."""

    known_version: int


Command = LeaseBlocks | ReturnBlocks | ReadBreakers | Trip | ProbeAsk | ProbeResult
Reply = Sequence[BlockGrant] | BreakerReading | BreakerRecord | ProbeGrant | None
