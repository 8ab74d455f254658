"""What the replicas of a gateway agree on: blocks of slots, breakers, request leases.

Every call is atomic in the store, idempotent, and measured on the store's clock. A caller
whose call failed does not know whether it took effect; repeating it is always right.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prime_inference.domain.sharing import Sharing


class CoordinationUnavailable(Exception):
    """The store did not answer in time, or not in a way that makes sense."""


class CoordinationRefused(CoordinationUnavailable):
    """The store answered that it will not: the text names the error, and what to do."""


# Rules of the store that every adapter keeps.
NEWCOMERS_FRACTION = 4  # newcomers to an empty store together get a quarter: others may come back
FORGET_CLOSED_S = 3600.0  # a closed breaker; no late report and no count of trips is so old
SAFE_FLOOR = 8  # of what it may keep for itself, a replica gives up all but an eighth to others
PROMPT_S = 1.0  # before its end, a block was renewed by whoever lives if the store was there then
RETURN_S = 2.0  # within it, all have asked again after an outage: 1 s without calls, and a call
BEAT_S = 1.0  # between two beats at least: one a second for the whole fleet costs nothing


# --- blocks of slots ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockAsk:
    """A replica asks for slots of a pool, or renews what it has.

    A holder has one block of what everybody shares, and one for each reservation. For a
    reservation, `interactive` is what it needs now and `batch` what it would like to have
    besides, which comes after everybody's need.
    """

    pool: str  # whose slots: a deployment
    holder: str  # the asking process; a new one after every start
    sequence: int  # grows with every ask of this holder; an older ask changes nothing
    capacity: int  # slots of the pool, as this holder knows; the least of all holders counts
    interactive: int  # slots wanted for interactive requests
    batch: int  # slots wanted for batch requests
    has: int  # what it allows itself at this moment
    in_flight: int  # requests it has running
    ttl_s: float
    sharing: Sharing = Sharing.FAIR
    reservation: str = ""  # empty: of what everybody shares
    reserved: int = 0  # slots of the pool that are the reservation's
    kept: int = 0  # of these, at least so many are not lent to others
    safe: int = 0  # what it allows itself if the store is not heard again
    keep: int = 0  # so many it would like to have in any case, though it may not need them now
    has_batch: int = 0  # batch requests that it allows itself, or has running if those are more

    @property
    def block(self) -> str:
        """The block's name in its pool."""
        return f"{self.holder}|{self.reservation}" if self.reservation else self.holder


@dataclass(frozen=True, slots=True)
class BlockGrant:
    """What a holder may fill until `ttl_s` after it sent the ask."""

    epoch: int  # grows with every new lease; the same as long as a lease is renewed in time
    granted: int  # slots
    batch: int  # of these, at most so many for batch requests
    holders: int  # replicas that hold or ask for slots of this kind in the pool
    learning: bool  # the store has just started and grants little
    recall: int = 0  # of the requests in flight, at most so many to be ended: slots are lent
    owed: int = 0  # slots of the reservation that are needed and on their way back
    safe: int = 0  # slots that nobody else is granted, also while the store is away
    capacity: int = 0  # slots of the pool as all replicas know them: the least
    more_in_s: float = field(default=0.0, compare=False)
    """Until learning ends, or the block that is in the way, where less was granted than wanted."""


# --- breakers ----------------------------------------------------------------------------


class BreakerState(enum.StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Cause(enum.StrEnum):
    """What opened a breaker."""

    CONSECUTIVE = "consecutive"  # failures in a row: hard evidence
    UNREACHABLE = "unreachable"  # failures in a row, none of which reached anybody
    RATE = "rate"  # a failure rate: statistics


class Verdict(enum.StrEnum):
    """How a probe ended."""

    ANSWERED = "answered"
    FAILED = "failed"
    LOST = "lost"  # it told nothing: the request was cancelled, or never sent


@dataclass(frozen=True, slots=True)
class BreakerRecord:
    """The shared state of a deployment's breaker."""

    deployment: str
    state: BreakerState
    epoch: int  # grows with every change of state; 0: the store knows nothing of it
    remaining_s: float = 0.0  # of an open breaker, until it may be probed
    cause: Cause = Cause.CONSECUTIVE
    trips: int = 0  # times it opened without a long healthy time between


@dataclass(frozen=True, slots=True)
class OpenTime:
    """How long a breaker stays open: `base_s`, doubled with every trip, at most `cap_s`."""

    base_s: float
    cap_s: float
    forget_s: float  # closed for so long, the next trip starts at `base_s` again


@dataclass(frozen=True, slots=True)
class Trip:
    """Open a breaker that is closed in the epoch in which the evidence was gathered."""

    deployment: str
    epoch: int
    cause: Cause
    open_time: OpenTime


@dataclass(frozen=True, slots=True)
class ProbeAsk:
    """Ask for a ticket to probe a deployment whose breaker is open and due, or half-open."""

    deployment: str
    owner: str  # names one probe of one process; asking twice gives one ticket
    ttl_s: float
    tickets: int  # that may be out at a time in the whole fleet


@dataclass(frozen=True, slots=True)
class ProbeGrant:
    granted: bool
    record: BreakerRecord


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Only the owner of a live ticket of the current epoch is listened to."""

    deployment: str
    owner: str
    epoch: int
    verdict: Verdict
    answers: int  # that close the breaker
    open_time: OpenTime


@dataclass(frozen=True, slots=True)
class BreakerSnapshot:
    """All breakers the store knows of. `version` changes whenever a record does."""

    version: int
    records: tuple[BreakerRecord, ...]


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life, pushed when somebody reads and the last one is older than `BEAT_S`."""

    number: int


@dataclass(frozen=True, slots=True)
class BreakerReading:
    """`beat` is the last one that was pushed: who has not heard it hears nothing."""

    beat: Beat
    news: BreakerSnapshot | None  # None: nothing has changed


Push = BreakerRecord | Beat


# --- request leases ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `most` requests at a time under this name."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class RequestAsk:
    """A lease for one request under several limits, all or none of them."""

    scope: str  # whose limits these are, e.g. a team: they are decided together
    limits: tuple[Limit, ...]
    member: str  # the request; never used for another one
    ttl_s: float


@dataclass(frozen=True, slots=True)
class RequestGrant:
    granted: bool
    limit: str | None = None  # the limit that refused
    retry_after_s: float = 0.0  # until the first of its leases ends, if nothing else does


# --- the port ----------------------------------------------------------------------------


class Coordination(Protocol):
    """Raises CoordinationUnavailable from every method, within a fraction of a second."""

    async def lease_blocks(self, asks: Sequence[BlockAsk]) -> Sequence[BlockGrant]:
        """Grant, renew or change blocks, in one command; one grant per ask, in order."""
        ...

    async def return_blocks(self, holder: str, pools: Sequence[str], sequence: int) -> None:
        """Give blocks back at once, with nothing left in flight under them.

        A block that was asked for with a higher sequence number since is left alone.
        """
        ...

    async def trip(self, trip: Trip) -> BreakerRecord:
        """Open a breaker; returns the record as it is now, whoever changed it."""
        ...

    async def probe(self, ask: ProbeAsk) -> ProbeGrant:
        """Get a ticket, or learn why not."""
        ...

    async def conclude(self, result: ProbeResult) -> BreakerRecord:
        """Tell how a probe ended; returns the record as it is now."""
        ...

    async def breakers(self, known_version: int) -> BreakerReading:
        """Every breaker, if anything has changed since `known_version`.

        An empty store has version 0; -1 is no version, and always gets an answer.
        """
        ...

    async def watch(self, listener: Callable[[Push], None]) -> None:
        """Call `listener` with every change of a breaker and every beat, until cancelled.

        Raises CoordinationUnavailable when changes can no longer be received. Changes may be
        missed all the same: `breakers` is the truth.
        """
        ...

    async def acquire(self, ask: RequestAsk) -> RequestGrant:
        """Lease one place under each of the limits, or none. Asking twice gives one lease."""
        ...

    async def renew(self, ask: RequestAsk) -> bool:
        """Prolong a live lease; False if it has ended, and then it stays ended."""
        ...

    async def release(self, ask: RequestAsk) -> bool:
        """End a lease; False if it had ended before: what was done since was done without it."""
        ...

    async def close(self) -> None: ...
