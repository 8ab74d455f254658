"""What befalls a simulation: one trouble at a time per replica, any number in the fleet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.engine import Engine, Mood
from tests.sim.replica import Replica
from tests.sim.store import STORE
from tests.sim.traffic import Attempt

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

LONGEST_S = 16.0
LEASE_S = 10.0


class Troubles:
    """Chooses troubles and lets them end."""

    def __init__(self, simulation: Simulation, *, long: float = 0.3) -> None:
        self._sim = simulation
        self._long = long  # share of troubles that are longer than a lease
        self._busy = [False] * len(simulation.replicas)  # places of replicas that are in trouble
        self._hunting = False
        simulation.books.admitted = self._hunt

    def all(self) -> list[Callable[[], None]]:
        """One of each kind; the more frequent ones several times."""
        return [
            self._crash, self._crash, self._restart_properly, self._pause, self._pause,
            self._cut_from_store, self._cut_from_store, self._cut_from_engine, self._freeze_store,
            self._freeze_store, self._empty_store, self._empty_store, self._step_store_back,
            self._step_store_forward, self._upset_engine, self._upset_engine, self._upset_engine,
            self._upset_datacenter, self._upset_datacenter, self._black_out, self._black_out,
            self._drain, self._hunt_probers,
        ]  # fmt: skip

    def of_the_store(self) -> list[Callable[[], None]]:
        """Those in which every replica lives, and none is cut off alone."""
        return [
            self._freeze_store, self._freeze_store, self._empty_store, self._step_store_back,
            self._cut_store_off, self._cut_store_off, self._upset_engine,
        ]  # fmt: skip

    def _length(self) -> float:
        random = self._sim.world.random
        if random.random() < self._long:
            return random.uniform(LEASE_S, LONGEST_S)
        return random.choice([0.1, 1, 5]) * random.random()

    def _replica_without_trouble(self) -> int | None:
        places = [place for place, busy in enumerate(self._busy) if not busy]
        return self._sim.world.random.choice(places) if places else None

    def _with_replica(self, what: str, begin: Callable[[Replica], Callable[[int], None]]) -> None:
        place = self._replica_without_trouble()
        if place is None:
            return
        replica = self._sim.replicas[place]
        seconds = self._length()
        self._sim.say(f"{what} {replica.name} for {seconds:.3f} s")
        self._busy[place] = True
        end = begin(replica)

        def over() -> None:
            self._busy[place] = False
            end(place)

        self._sim.world.after(seconds, over)

    def _crash(self) -> None:
        def begin(replica: Replica) -> Callable[[int], None]:
            self._sim.kill(replica)
            return self._sim.replace

        self._with_replica("kill -9", begin)

    def _hunt_probers(self) -> None:
        self._sim.say("from now on every other probe costs its replica's life")
        self._hunting = True

    def _hunt(self, attempt: Attempt) -> None:
        self._sim.invariants.admitted(attempt)
        if not self._hunting or self._sim.peace or attempt.slot.ticket is None:
            return
        if self._sim.world.random.random() < 0.5:
            self._sim.world.after(0.001, self._kill_at, attempt.replica)

    def _kill_at(self, replica: Replica) -> None:
        if replica in self._sim.replicas and replica.running:
            place = self._sim.replicas.index(replica)
            if not self._busy[place]:
                self._sim.say(f"kill -9 {replica.name} as it probes")
                self._busy[place] = True
                self._sim.kill(replica)
                self._sim.world.after(1.0, self._back_after_hunt, place)

    def _back_after_hunt(self, place: int) -> None:
        self._busy[place] = False
        self._sim.replace(place)

    def _restart_properly(self) -> None:
        def begin(replica: Replica) -> Callable[[int], None]:
            self._sim.kill(replica, properly=True)
            return self._sim.replace

        self._with_replica("stop", begin)

    def _pause(self) -> None:
        def begin(replica: Replica) -> Callable[[int], None]:
            replica.pause()
            return lambda place: replica.resume()

        self._with_replica("freeze", begin)

    def _cut_from_store(self) -> None:
        def begin(replica: Replica) -> Callable[[int], None]:
            self._sim.network.cut(replica.name, STORE)
            return lambda place: self._sim.network.heal(replica.name, STORE)

        self._with_replica("cut from the store:", begin)

    def _cut_from_engine(self) -> None:
        engine = self._sim.world.random.choice(self._sim.fleet).id

        def begin(replica: Replica) -> Callable[[int], None]:
            self._sim.network.cut(replica.name, engine)
            return lambda place: self._sim.network.heal(replica.name, engine)

        self._with_replica(f"cut from {engine}:", begin)

    def _freeze_store(self) -> None:
        seconds = self._length()
        self._sim.say(f"freeze the store for {seconds:.3f} s")
        self._sim.store.freeze()
        self._sim.world.after(seconds, self._sim.store.thaw)

    def _cut_store_off(self) -> None:
        seconds = self._length()
        names = [replica.name for replica in self._sim.replicas]
        self._sim.say(f"cut everybody from the store for {seconds:.3f} s")
        for name in names:
            self._sim.network.cut(name, STORE)
            self._sim.world.after(seconds, self._sim.network.heal, name, STORE)

    def _empty_store(self) -> None:
        seconds = self._length()
        self._sim.say(f"kill the store, start it empty after {seconds:.3f} s")
        self._sim.store.stop()
        self._sim.world.after(seconds, self._sim.store.start_empty)

    def _step_store_back(self) -> None:
        seconds = self._sim.world.random.choice([0.01, 1, 100])
        self._sim.say(f"set the store's clock back by {seconds} s")
        self._sim.store.clock.step(-seconds)

    def _step_store_forward(self) -> None:
        seconds = self._sim.world.random.choice([0.01, 1, 30])
        self._sim.say(f"set the store's clock forward by {seconds} s")
        self._sim.store.clock.step(seconds)
        self._sim.invariants.store_lost_time = True

    def _upset_engine(self) -> None:
        self._upset([self._sim.world.random.choice(self._sim.fleet).id])

    def _upset_datacenter(self) -> None:
        """All deployments of one or of both datacenters."""
        hit = self._sim.world.random.choice([{"dc0"}, {"dc1"}, {"dc0", "dc1"}])
        self._upset([spec.id for spec in self._sim.fleet if spec.datacenter in hit])

    def _black_out(self) -> None:
        """Every deployment fails for long enough that every breaker opens."""
        random = self._sim.world.random
        names = [spec.id for spec in self._sim.fleet]
        self._trouble(names, random.choice([Mood.DOWN, Mood.FLAKY]), random.uniform(3, LONGEST_S))

    def _upset(self, names: list[str]) -> None:
        mood = self._sim.world.random.choice([mood for mood in Mood if mood is not Mood.WELL])
        self._trouble(names, mood, self._length())

    def _trouble(self, names: list[str], mood: Mood, seconds: float) -> None:
        self._sim.say(f"{', '.join(names)}: {mood.name} for {seconds:.3f} s")
        for name in names:
            self._sim.engines[name].mood = mood
            self._sim.world.after(seconds, self._calm, self._sim.engines[name])

    @staticmethod
    def _calm(engine: Engine) -> None:
        engine.mood = Mood.WELL

    def _drain(self) -> None:
        """Take a deployment out on all replicas, and put it back."""
        gone = self._sim.world.random.choice(self._sim.fleet)
        seconds = self._length()
        self._sim.say(f"drain {gone.id} for {seconds:.3f} s")
        rest = [spec for spec in self._sim.fleet if spec is not gone]
        self._sim.configure(rest)
        self._sim.world.after(seconds, self._sim.configure, self._sim.fleet)
