"""One simulation: a fleet, its traffic, its misfortunes, and an end that must be peaceful."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from prime_inference.domain.models import Deployment
from prime_inference.ports.coordination import BreakerState
from prime_inference.reliability.settings import BreakerSettings, LeaseSettings, Settings
from prime_inference.reliability.slots import Priority, Refusal, Slot
from tests.sim.engine import Engine
from tests.sim.invariants import Broken, Invariants
from tests.sim.network import Network, Weather
from tests.sim.replica import Replica
from tests.sim.store import LEASE_S, SimStore
from tests.sim.traffic import Books, Request, canary
from tests.sim.troubles import LONGEST_S, Troubles
from tests.sim.world import DriftingClock, World

TROUBLE_FROM_S = 4.0
TROUBLE_UNTIL_S = 24.0
PEACE_S = 50.0  # open time 30 + ticket 15 + a lease: after that nothing may be left of any trouble
CALM_S = 5.0  # a lease is renewed, a breaker is read
PEACEFUL_PER_SECOND = 2.0
QUIET_PER_SECOND = 0.03  # there are twenty seconds and more between two requests
DRIFT = 0.005  # of each clock; the early end of leases covers 2 % between two


ONLY_THE_STORE = 0.25  # of all simulations: then not one request more than there are slots


OWNER = "res"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What clients do."""

    per_second: float
    mean_s: float  # of an answer
    batch: float  # share of batch requests
    leaving: float  # share of clients that leave before the end
    bursts_s: float  # a replica is busy for so long, then idle for so long; 0: steady


class Simulation:
    """Everything follows from the seed."""

    def __init__(self, seed: int) -> None:
        world = self.world = World(seed)
        random = world.random
        self.log: list[str] = []
        self.books = Books()
        weather = Weather(loss=random.choice([0, 0, 0.01, 0.1]), slow=random.choice([0, 0, 0.05]))
        self.network = Network(world, weather)
        self.store = SimStore(world, self.network, self._clock())
        only_the_store_fails = random.random() < ONLY_THE_STORE
        self.settings = Settings(
            lease=LeaseSettings(assumed_replicas=1 if only_the_store_fails else 3),
            breaker=BreakerSettings(
                poll_s=random.choice([0.15, 1.0, 1.0]), tickets=random.choice([1, 2])
            ),
        )
        self.fleet = self._make_fleet()
        self.allotment = self._reserve()
        self.engines = {spec.id: Engine(spec) for spec in self.fleet}
        self.invariants = Invariants(
            self.store,
            self.books,
            {spec.id: spec.slots for spec in self.fleet},
            self.settings.breaker.tickets,
            self.allotment,
        )
        send = canary(world, self.network, self.engines, self.books)
        self._canary = send if random.random() < 0.5 else None
        self._names = itertools.count(1)
        self.replicas: list[Replica] = []
        for _ in range(random.randint(1, 4)):
            self.replicas.append(self._start_replica())
        self._first_is_quiet = random.random() < 0.25  # so that it goes to rest
        self.traffic = Traffic(
            per_second=random.choice([0.5, 3, 9]),
            mean_s=random.choice([4, 12] if self._first_is_quiet else [0.2, 1, 4]),
            batch=random.choice([0, 0.3]),
            leaving=random.choice([0, 0.05]),
            bursts_s=random.choice([0, 3, 7]),
        )
        self.peace = False
        self._troubles = Troubles(self).all()
        if only_the_store_fails:
            self._let_only_the_store_fail()

    def _let_only_the_store_fail(self) -> None:
        """Long outages, and replicas that are busy in turn with long answers."""
        self.invariants.only_the_store_fails = True
        self._troubles = Troubles(self, long=0.7).of_the_store()
        self.traffic = replace(self.traffic, per_second=3, mean_s=8, bursts_s=9)

    def run(self) -> None:
        """Raises AssertionError, with the moment in its notes."""
        world = self.world
        for place in range(len(self.replicas)):
            self._schedule_request(place)
        for _ in range(world.random.randint(3, 16)):
            when = world.random.uniform(TROUBLE_FROM_S, TROUBLE_UNTIL_S)
            world.at(when, world.random.choice(self._troubles))
        try:
            world.run_until(TROUBLE_UNTIL_S + LONGEST_S)
            self._make_peace()
            world.run_until(world.now + PEACE_S)
            self.network.weather = Weather()  # a lost answer in this second is no damage that lasts
            world.run_until(world.now + CALM_S)
            self._check_peace()
            self._check_owner()
            self._check_capacity()
            self._check_ends()
        except AssertionError as error:
            error.add_note(f"at {world.now:.4f} s of simulated time; what had happened:")
            error.add_note("\n".join(self.log))
            raise

    # --- the cast ---

    def _clock(self) -> DriftingClock:
        random = self.world.random
        return DriftingClock(
            self.world, 1 + random.uniform(-DRIFT, DRIFT), random.uniform(100, 1e6)
        )

    def _make_fleet(self) -> list[Deployment]:
        random = self.world.random
        return [
            Deployment(
                id=f"{model}-{number}",
                model=model,
                datacenter=f"dc{number % 2}",
                base_url="http://127.0.0.1:1/v1",
                engine="openai",
                slots=random.choice([1, 2, 5, 12]),
                upstream_model=model,
            )
            for model, count in (("m", random.randint(1, 4)), ("n", random.randint(0, 1)))
            for number in range(count)
        ]

    def _reserve(self) -> dict[str, dict[str, int]]:
        """Slots of the one team that has some reserved; in half of the simulations nobody."""
        random = self.world.random
        if random.random() < 0.5:
            return {}
        parts = {spec.id: random.randint(0, spec.slots) for spec in self.fleet if spec.model == "m"}
        return {name: {OWNER: slots} for name, slots in parts.items() if slots}

    def _start_replica(self) -> Replica:
        replica = Replica(
            f"r{next(self._names)}",
            self.world,
            self.network,
            self.store,
            self._clock(),
            self.settings,
            self.fleet,
            canary=self._canary,
        )
        self.invariants.replicas[replica.name] = replica
        replica.guard.reserved.allot(self.allotment)
        return replica

    # --- traffic ---

    def _schedule_request(self, place: int) -> None:
        rate = self.traffic.per_second
        if self.traffic.bursts_s and int(self.world.now / self.traffic.bursts_s + place) % 2:
            rate /= 10  # each replica in its turn: shares go back and forth
        if self._first_is_quiet and place == 0:
            rate = QUIET_PER_SECOND
        if self.peace:  # steady, and enough to be probes; there is nothing more to find
            rate = min(self.traffic.per_second, PEACEFUL_PER_SECOND)
        self.world.after(self.world.random.expovariate(rate), self._request, place)

    def _request(self, place: int) -> None:
        if self.peace and self.world.now > TROUBLE_UNTIL_S + LONGEST_S + PEACE_S - 10:
            return
        self._schedule_request(place)
        replica = self.replicas[place]
        replica.do(self._begin, replica)

    def _begin(self, replica: Replica) -> None:
        random = self.world.random
        model = random.choice(self.fleet).model
        self.invariants.offered(replica, model, replica.guard.candidates(model))
        priority = Priority.BATCH if random.random() < self.traffic.batch else Priority.INTERACTIVE
        request = Request(
            self.world, self.network, self.engines, self.books, replica, model, priority,
            self.traffic.mean_s,
            OWNER if self.allotment and model == "m" and random.random() < 0.3 else "",
        )  # fmt: skip
        request.go()
        if random.random() < self.traffic.leaving:
            self.world.after(random.uniform(0, 2), replica.do, request.leave)

    # --- what troubles do ---

    def say(self, what: str) -> None:
        self.log.append(f"{self.world.now:9.4f}  {what}")

    def kill(self, replica: Replica, *, properly: bool = False) -> None:
        requests = [r for r in self.books.unfinished if r.replica is replica]
        if properly:
            for request in requests:
                request.leave()
            replica.stop_properly()
        else:
            replica.crash()
            for request in requests:
                request.vanish()
        for attempts in [*self.books.open.values(), *self.books.probes.values()]:
            attempts.difference_update([a for a in attempts if a.replica is replica])

    def replace(self, place: int) -> None:
        self.replicas[place] = self._start_replica()
        self.say(f"start {self.replicas[place].name}")

    def configure(self, fleet: list[Deployment]) -> None:
        for replica in self.replicas:
            delay = self.world.random.uniform(0, 1)  # a file is not read everywhere at once
            self.world.after(delay, replica.do, self._take_over, replica, fleet)

    def _take_over(self, replica: Replica, fleet: list[Deployment]) -> None:
        replica.guard.configure(fleet)
        there = {spec.id for spec in fleet}
        parts = {name: slots for name, slots in self.allotment.items() if name in there}
        replica.guard.reserved.allot(parts)

    # --- the end ---

    def _make_peace(self) -> None:
        self.say("peace")
        self.peace = True
        self.configure(self.fleet)

    def _check_peace(self) -> None:
        for replica in self.replicas:
            if replica.guard.degraded:
                raise Broken(f"{replica.name} is still degraded")
            for status in replica.guard.status():
                open_ = status.breaker is not BreakerState.CLOSED
                if open_ and self._has_traffic and not self._serves_anyway(status.id):
                    raise Broken(f"the breaker of {status.id} is stuck on {replica.name}")

    def _serves_anyway(self, name: str) -> bool:
        """The last of a model is never ejected: requests that are no probes use its slots.

        Where those are few, probes come late: one needs a ticket and a slot at the same time.
        """
        spec = next(each for each in self.fleet if each.id == name)
        alone = sum(each.model == spec.model for each in self.fleet) == 1
        return alone and spec.slots < len(self.replicas)

    @property
    def _has_traffic(self) -> bool:
        """Probes are sent: by canaries, or by requests."""
        return self._canary is not None or self.traffic.per_second > 1

    def _check_owner(self) -> None:
        """Everybody has taken what he can get, and will not end: the owner comes.

        Within a lease he has every slot that he has reserved, whatever the others lose.
        """
        statuses = [status for replica in self.replicas for status in replica.guard.status()]
        ejected = {each.id for each in statuses if each.breaker is not BreakerState.CLOSED}
        parts = [part for name, part in self.allotment.items() if name not in ejected]
        reserved = sum(sum(part.values()) for part in parts)  # nobody has what is ejected
        if not reserved:
            return
        taken: list[Slot] = []
        owner = _Owner(self, reserved)
        for _ in range(12):
            self._grab(taken)
            self.world.run_until(self.world.now + 1.0)
        end = self.world.now + LEASE_S * (1 + DRIFT)
        while owner.has < reserved and self.world.now < end:
            owner.ask()
            self._grab(taken)
            self.world.run_until(min(end, self.world.now + 1.0))
        got = owner.has
        owner.leave()
        for slot in taken:
            slot.release()
        if got < reserved:
            raise Broken(f"the owner has {got} of {reserved} reserved slots after a lease")

    def _grab(self, taken: list[Slot]) -> None:
        """Take every slot that anybody may have; half of the requests begin to answer."""
        for replica in self.replicas:
            for name in self.allotment:
                while isinstance(slot := replica.guard.admit(name), Slot):
                    taken.append(slot)
                    slot.when_recalled(_nothing)
                    if self.world.random.random() < 0.5:
                        slot.first_token()

    def _check_capacity(self) -> None:
        """All replicas want everything: within a lease's time every slot is leased to somebody.

        Not at every moment: with fewer slots than replicas, slots go round.
        """
        never_all_leased = {spec.id: spec for spec in self.fleet}
        for _ in range(10):
            for replica in self.replicas:
                for spec in self.fleet:
                    lease = replica.guard._deployments[spec.id].lease
                    for _ in range(spec.slots):
                        lease.refused(0, 0, for_batch=False, now=replica.clock())
                replica.guard.wake()
            self.world.run_until(self.world.now + 1.0)
            for spec in list(never_all_leased.values()):
                leased = sum(held for _, held in self.store.leases(spec.id).values())
                kept = sum(self.allotment.get(spec.id, {}).values())  # nobody asks for them here
                if spec.slots - kept <= leased <= spec.slots:
                    del never_all_leased[spec.id]
        if never_all_leased:
            raise Broken(f"not all slots were leased: {', '.join(never_all_leased)}")

    def _check_ends(self) -> None:
        deadline = self.world.now + 120
        while self.books.unfinished and self.world.now < deadline:
            self.world.run_until(self.world.now + 5)
        if self.books.unfinished:
            raise Broken(f"{len(self.books.unfinished)} requests have not ended")
        if self.books.begun != self.books.ends.total():
            raise Broken(f"{self.books.begun} requests, {self.books.ends.total()} ends")
        for name, attempts in self.books.open.items():
            if attempts:
                raise Broken(f"{len(attempts)} slots of {name} were never given back")
        for replica in self.replicas:
            for status in replica.guard.status():
                if status.in_flight:
                    raise Broken(f"{replica.name} counts {status.in_flight} on {status.id}")


class _Owner:
    """Asks for all its slots, and again for those it was refused."""

    def __init__(self, simulation: Simulation, wanted: int) -> None:
        self._sim = simulation
        self._wanted = wanted
        self._waiting = 0
        self._left = False
        self.slots: list[Slot] = []

    @property
    def has(self) -> int:
        """Slots, those of its earlier requests that still run among them."""
        earlier = sum(
            bool(attempt.reservation)
            for attempts in self._sim.books.open.values()
            for attempt in attempts
        )
        return len(self.slots) + earlier

    def ask(self) -> None:
        for _ in range(self._wanted - self.has - self._waiting):
            reserved = self._sim.world.random.choice(self._sim.replicas).guard.reserved
            slots = (reserved.admit(name, OWNER) for name in self._sim.allotment)
            slot = next((slot for slot in slots if slot is not None), None)
            if slot is not None:
                self.slots.append(slot)
            elif reserved.wait(OWNER, self._delivered) is not None:
                self._waiting += 1

    def leave(self) -> None:
        self._left = True
        for slot in self.slots:
            slot.release()

    def _delivered(self, result: Slot | Refusal) -> None:
        self._waiting -= 1
        if isinstance(result, Slot):
            self.slots.append(result)
            if self._left:
                result.release()


def _nothing() -> None:
    """The attempt that is ended was none."""
