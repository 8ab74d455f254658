"""Where a request of a team with reserved slots goes first (docs/reservations.md)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence, Set
from functools import partial

from prime_inference.domain.errors import ReservationExhausted
from prime_inference.domain.reservations import Reservation
from prime_inference.gateway.run import Run
from prime_inference.gateway.sessions import Homes
from prime_inference.gateway.upstreams import Upstream
from prime_inference.reliability.delivery import Delivery
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.slots import Reason, Refusal, Slot

RETRY_S = 1.0  # a replica asks again for slots that others of the team have after so long
LOOKS_S = 0.25  # between two looks for one of them by an answer that has begun
FULL = Refusal(Reason.FULL, RETRY_S)


class ReservedPlaces:
    """Finds slots of the reservations of a run."""

    def __init__(self, guard: Guard, homes: Homes) -> None:
        self._guard = guard
        self._homes = homes

    async def first(self, run: Run, able: Sequence[Upstream]) -> tuple[Upstream, Slot, None] | None:
        """A deployment and a slot on it, without a hedge; None: go where everybody goes.

        Waits for slots that are lent, at most a lease. Raises ReservationExhausted,
        CapacityExhausted where the reservation does not allow to go elsewhere.
        """
        by_id = {upstream.deployment.id: upstream for upstream in able}
        for reservation in run.reserved:
            for name in self._ranked(run, by_id, reservation):
                slot = self._guard.reserved.admit(name, reservation.id)
                if slot is not None:
                    return by_id[name], slot, None
        waited = False
        for reservation in run.reserved:
            found = await wait_for_reserved(self._guard, reservation.id, by_id.keys())
            if isinstance(found, Slot):
                return by_id[found.deployment], found, None
            waited |= isinstance(found, Refusal) and found.reason is Reason.WAITED
        run.over = "late" if waited else "slots"
        if run.may_share:
            return None
        if waited or not any(self._guard.reserved.has_slots(each.id) for each in run.reserved):
            # the team's slots have not come, or are gone with their deployments
            raise Refusal(Reason.WAITED, RETRY_S).error(run.model)
        raise exhausted(run)

    def _ranked(
        self, run: Run, by_id: Mapping[str, Upstream], reservation: Reservation
    ) -> list[str]:
        """Deployments with slots of it: the session's own first, then as the guard has them."""
        names = [
            name
            for name in self._guard.candidates(run.model)
            if name in by_id and self._guard.reserved.has(name, reservation.id)
        ]
        if run.session and len(names) > 1:
            home = self._homes.choose(run, by_id, names)
            names.remove(home)
            names.insert(0, home)
        return names


def admit(guard: Guard, run: Run, deployment: str) -> Slot | Refusal:
    """A slot of the run's reservations there, or of those that everybody shares, if it may."""
    for reservation in run.reserved:
        slot = guard.reserved.admit(deployment, reservation.id)
        if slot is not None:
            return slot
    if not run.may_share:
        return FULL
    return guard.admit(deployment, run.priority)


async def wait_for_reserved(
    guard: Guard, reservation: str, among: Set[str]
) -> Slot | Refusal | None:
    """A slot of the reservation on one `among`, after a wait of a lease at most.

    None: all are in use.

    A cancelled caller leaves the line, or gives back the slot that it was just handed.
    """
    delivery = Delivery()
    waiter = guard.reserved.wait(reservation, delivery, among)
    if waiter is None:
        return None
    return await delivery.received(partial(guard.reserved.leave, waiter))


async def wait_again(guard: Guard, run: Run, among: Set[str]) -> Slot | Refusal:
    """A slot of the run's reservations on one `among`, for an answer that has begun.

    Waits for a moment, so that all of its reservations are asked in turn.
    """
    for reservation in run.reserved:
        for name in among:
            slot = guard.reserved.admit(name, reservation.id)
            if slot is not None:
                return slot
    for reservation in run.reserved:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOKS_S):
                found = await wait_for_reserved(guard, reservation.id, among)
                if isinstance(found, Slot):
                    return found
    await asyncio.sleep(LOOKS_S)
    return FULL


def exhausted(run: Run) -> ReservationExhausted:
    """What a client over its reservation is told."""
    slots = sum(reservation.slots for reservation in run.reserved)
    return ReservationExhausted(
        f"All {slots} reserved slots of {run.model} are in use. Try again shortly.",
        reservations=[reservation.id for reservation in run.reserved],
        over="slots",
        retry_after=RETRY_S,
        details={"slots": slots},
    )
