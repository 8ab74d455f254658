"""A replica's side of a block lease: what it may fill, what it asks for, and when.

docs/reliability.md, "Admission", says why it never fills what the store has given to others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from prime_inference.domain.sharing import batch_part
from prime_inference.ports.coordination import BlockAsk, BlockGrant
from prime_inference.reliability.settings import LeaseSettings

ASK_AFTER_FAILURE_S = (
    0.25  # a store that is coming back is found soon, one that is away not flooded
)
RENEW_RESERVED_AT = 1 / 3
"""Of ttl_s, where slots may be lent: whoever has them hears that they are wanted back."""
REPLICAS_REMEMBERED_S = 60.0  # longer than all replicas take to ask again after an outage


class BlockLease:
    """The block of one deployment on one replica. Time is passed in.

    A lease at rest holds no slots; the store knows that its holder is there. The first request
    wakes it, and waits until it is ready: the store has answered, or failed to.
    """

    def __init__(
        self,
        pool: str,
        holder: str,
        capacity: int,
        settings: LeaseSettings,
        sequences: Iterator[int],
    ) -> None:
        self.pool = pool
        self.capacity = capacity
        self.epoch = 0
        self.granted = 0
        self.batch = 0
        self.batch_in_flight = 0
        self.valid_until = -math.inf  # by our own clock
        self.safe = 0  # without a valid lease; 0 until the store was asked once
        self.kept = 0  # of the safe capacity, what the store grants nobody else
        self.more_at: float | None = None  # when the store may have more for us, if it lacks some
        self._agreed = capacity  # slots, as all replicas know them: the least
        self.reserved = 0  # slots of the deployment that are others'
        self.learning = False  # the store has just started
        self.recall_to: int | None = None  # in flight at most, since slots were lent; None: all
        self.replicas = settings.assumed_replicas
        self._replicas_until = -math.inf  # before, it is not lowered
        self._assumed = settings.assumed_replicas  # at least, for the safe capacity
        self._assumed_until = math.inf
        self.asking = False
        self.resting = False
        self.ready = False  # what `limit` says is more than ignorance
        self.closing = False  # no new requests: wants nothing, and goes when nothing is in flight
        self._holder = holder
        self._settings = settings
        self._sequences = sequences  # of the holder: a pool that comes back must not start again
        self._sequence = 0
        self._sent_at = -math.inf
        self._ask_at = -math.inf
        self._asked_to_rest = False
        self._contended = False  # others hold what interactive requests want
        self._batch_is_full = False  # others hold what batch wants, or it has all it may have
        self.peak_interactive = self._last_interactive = 0
        self._peak_batch = self._last_batch = 0
        self._peaks_turn_at = -math.inf
        self._refused_interactive = self._refused_batch = 0  # since the last ask

    # --- spending ---

    def limit(self, now: float) -> int:
        """Requests that may be in flight at this moment."""
        return self.granted if now < self.valid_until else self.safe

    def batch_limit(self, now: float) -> int:
        """Of these, for batch requests."""
        if now < self.valid_until:
            return self.batch
        return batch_part(self.safe) if self.safe else 0

    def lapsed(self, now: float) -> bool:
        """Whether there was a chance to have a lease, and there is none."""
        return now >= self.valid_until and self.safe > 0

    @property
    def unused(self) -> bool:
        """Whether no slot was taken since the renewal before the last one."""
        interactive = self.peak_interactive or self._last_interactive
        return not (interactive or self._peak_batch or self._last_batch)

    def may_grow_by(self, now: float, *, for_batch: bool = False) -> int:
        """Slots that the next answer may bring: nobody has said that others hold them.

        `for_batch`: to batch, which has what interactive requests do not want.
        """
        if self._contended or (self.ready and now >= self.valid_until):
            return 0
        if not for_batch:  # the first answer may bring everything
            return self.capacity - self.granted if self.ready else self.capacity
        if self._batch_is_full:
            return 0
        interactive, _ = self._wanted()
        return max(0, min(batch_part(self.capacity), self.capacity - interactive) - self.batch)

    def demand(self, interactive: int, batch: int, now: float, *, for_batch: bool = False) -> None:
        """So many would be in flight now if nothing were refused; more than we have: ask soon."""
        self._saw(interactive, batch)
        if interactive + batch >= self.granted < self.capacity:
            self._ask_soon(now, for_batch=for_batch)

    def refused(self, interactive: int, batch: int, *, for_batch: bool, now: float) -> None:
        """One more could not be admitted beside those in flight."""
        if for_batch:
            self._refused_batch += 1
        else:
            self._refused_interactive += 1
        self._saw(interactive + self._refused_interactive, batch + self._refused_batch)
        self._ask_soon(now, for_batch=for_batch)

    def _saw(self, interactive: int, batch: int) -> None:
        if interactive > self.peak_interactive:
            self.peak_interactive = interactive
        if batch > self._peak_batch:
            self._peak_batch = batch

    def wake(self, now: float) -> None:
        """Somebody comes: ask for slots again, at once."""
        if self.resting:
            self.resting = False
            self._ask_at = now

    def _ask_soon(self, now: float, *, for_batch: bool = False) -> None:
        self.wake(now)
        settings = self._settings
        in_vain = self._contended or (for_batch and self._batch_is_full)
        gap_s = settings.contended_gap_s if in_vain else settings.ask_gap_s
        self._ask_at = min(self._ask_at, max(now, self._sent_at + gap_s))

    # --- asking ---

    @property
    def ask_at(self) -> float:
        """When to ask next; never while an answer is awaited."""
        return math.inf if self.asking else self._ask_at

    def ask(self, in_flight: int, now: float, *, rest: bool = False) -> BlockAsk:
        """The next ask. What is not wanted any more is given up before it is said to be.

        `rest`: with nothing in flight and nobody coming; gives everything up.
        """
        interactive, batch = (0, 0) if rest else self._wants(now)
        keep = self._keep()
        self.resting = rest
        if rest:
            self.ready = False
            self.granted = self.batch = 0
            self.kept = min(self.kept, keep)
            self.safe = self._safe_capacity()
            self.valid_until = now + self._settings.ttl_s
        elif now < self.valid_until:  # later, what is given up cannot be had again
            self.granted = min(self.granted, max(interactive + batch, in_flight))
            self.batch = min(self.batch, self.granted, batch)
            self.kept = min(self.kept, keep)
            self.safe = self._safe_capacity()
        self._refused_interactive = self._refused_batch = 0
        self._asked_to_rest = rest
        self._sequence = next(self._sequences)
        self._sent_at = now
        self.asking = True
        return BlockAsk(
            pool=self.pool,
            holder=self._holder,
            sequence=self._sequence,
            capacity=self.capacity,
            interactive=interactive,
            batch=batch,
            has=self.limit(now),
            in_flight=in_flight,
            ttl_s=self._settings.ttl_s,
            sharing=self._settings.sharing,
            safe=max(self.granted, self.kept),
            keep=keep,
            has_batch=max(self.batch_limit(now), self.batch_in_flight),
        )

    def accept(self, ask: BlockAsk, grant: BlockGrant, sent_at: float, now: float) -> None:
        """The store's answer to the outstanding ask. An answer to an older one is ignored."""
        if not self.awaits(ask):
            return
        settings = self._settings
        self.asking = False
        self.epoch = grant.epoch
        self.granted = grant.granted
        batch_is_cut = grant.batch < self.batch
        self.batch = grant.batch
        self.recall_to = ask.in_flight - grant.recall if grant.recall else None
        self.kept = grant.safe
        self._agreed = grant.capacity or self.capacity
        self._count_replicas(grant, now)
        self.safe = self._safe_capacity()
        self.more_at = sent_at + grant.more_in_s if grant.more_in_s else None
        self.learning = grant.learning
        self.valid_until = sent_at + ask.ttl_s * (1 - settings.early_end)
        self._contended = grant.granted - grant.batch < ask.interactive
        self._batch_is_full = grant.batch < ask.batch or grant.batch >= batch_part(self.capacity)
        if self._asked_to_rest and not self.resting:  # somebody came meanwhile
            self._ask_at = now
            return
        self._ask_at = sent_at + settings.ttl_s * self._renew_at
        if self.resting:
            return
        self.ready = True
        if grant.granted < ask.interactive + ask.batch:
            self._ask_at = min(self._ask_at, sent_at + settings.contended_gap_s)
        is_cut = grant.granted < ask.has or max(grant.granted, grant.safe) < ask.safe
        if is_cut or batch_is_cut:  # the store frees the difference when it hears that we know
            self._ask_at = now

    def failed(self, ask: BlockAsk, now: float) -> None:
        """The outstanding ask was not answered."""
        if not self.awaits(ask):
            return
        self.asking = False
        if now >= self.valid_until:  # nobody knows what is lent
            self.recall_to = None
        if not self.epoch:  # nobody has told what is left: a part of all
            self.safe = self._part()
        self._ask_at = now + ASK_AFTER_FAILURE_S
        if not self.resting and not self.ready:
            self.ready = True
            self.valid_until = -math.inf  # who waits for slots goes by the safe capacity

    def awaits(self, ask: BlockAsk) -> bool:
        """Whether that is the outstanding ask."""
        return self.asking and ask.sequence == self._sequence

    def confirm(self, now: float) -> None:
        """Fewer are in flight than the store counts: tell it at once."""
        self._ask_at = min(self._ask_at, now)

    def reserve(self, slots: int) -> None:
        """So many slots of the deployment are others': nothing of them without a lease."""
        if slots != self.reserved:
            self.reserved = slots
            if not self.epoch:
                self.safe = min(self.safe, self._part())

    def resize(self, capacity: int) -> None:
        """The deployment has another number of slots; the store hears of it at once."""
        self.capacity = capacity
        self._agreed = min(self._agreed, capacity)
        self.granted = min(self.granted, capacity)
        self.safe = min(self.safe, capacity)
        self._ask_at = -math.inf

    def close(self) -> None:
        """Want nothing any more; what is in flight goes on."""
        self.closing = True

    def reopen(self) -> None:
        """Want slots again, and ask for them at once."""
        if self.closing:
            self.closing = False
            self._ask_at = -math.inf

    def _count_replicas(self, grant: BlockGrant, now: float) -> None:
        """More at once, fewer later: who asks first, ever or after an outage, is not alone."""
        if self._assumed_until == math.inf:
            self._assumed_until = now + REPLICAS_REMEMBERED_S
        elif now >= self._assumed_until:
            self._assumed = 1
        fewer_is_true = now >= self._replicas_until and not grant.learning
        if grant.holders >= self.replicas or fewer_is_true:
            self.replicas = grant.holders
            self._replicas_until = now + REPLICAS_REMEMBERED_S

    @property
    def _renew_at(self) -> float:
        return self._settings.renew_at if not self.reserved else RENEW_RESERVED_AT

    def _safe_capacity(self) -> int:
        """What the store grants nobody else; one slot in turn with others, where slots are few."""
        few = 0 < self._own < self.replicas
        return max(self.granted, self.kept, 1 if few else 0)

    @property
    def _own(self) -> int:
        """Slots that are not others', as all replicas know them."""
        return min(self.capacity, self._agreed) - self.reserved

    def _part(self) -> int:
        own = self._own
        return max(1, own // max(self.replicas, self._assumed)) if own > 0 else 0

    def _keep(self) -> int:
        """Slots that nobody else is to have, for the time when the store is away."""
        if self.closing or self._own < self.replicas:
            return 0
        return max(1, int(self._part() * self._settings.keep))

    def _reserve(self) -> int:
        """Slots kept though nobody needs them, unless others do: growth meets leased slots."""
        return 0 if self._contended else int(self._part() * self._settings.reserve)

    def _wants(self, now: float) -> tuple[int, int]:
        """`_wanted`; what was before the last renewal is forgotten after it."""
        wanted = self._wanted()
        if now >= self._peaks_turn_at:
            self._last_interactive, self.peak_interactive = self.peak_interactive, 0
            self._last_batch, self._peak_batch = self._peak_batch, 0
            self._peaks_turn_at = now + self._settings.ttl_s * self._settings.renew_at
        return wanted

    def _wanted(self) -> tuple[int, int]:
        """Slots for the peak since the renewal before the last one, and some headroom."""
        if self.closing:
            return 0, 0
        more = 1 + self._settings.headroom
        peak_interactive = max(self.peak_interactive, self._last_interactive)
        batch = math.ceil(max(self._peak_batch, self._last_batch) * more)
        interactive = max(math.ceil(peak_interactive * more) + 1, self._reserve())
        if batch:  # what may come leaves it a slot, and all where slots are few
            spare = self._own - 1 if self._own > self.replicas else 0
            interactive = min(interactive, max(peak_interactive, spare))
        return min(self.capacity, interactive), min(batch, batch_part(self.capacity))
