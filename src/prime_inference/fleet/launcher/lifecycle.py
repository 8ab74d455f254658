"""What state a deployment is in, from what is wanted and what is seen. Pure.

             crash-looping
                    ▲
                    ▼
    stopped ──► starting ──► ready ◄──► degraded
       ▲            │          │  ▲         │
       │            ▼          ▼  │         ▼
       └─ draining ◄┴──────── failing ◄─────┘

A gateway is given deployments that are ready or degraded. One that is crash-looping has not
been ready, and will not be: a process of it ends whenever it is started.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

State = Literal["stopped", "starting", "crash-looping", "ready", "degraded", "failing", "draining"]

SERVING: frozenset[State] = frozenset({"ready", "degraded"})
DOWN_LOOKS = 3  # in a row; new requests go elsewhere after one, those that wait are not torn off


@dataclass(frozen=True, slots=True)
class Readiness:
    """What a frontend says of itself: `workers` are those it can route to, by role."""

    ready: bool
    workers: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Lifecycle:
    """One deployment. `was_ready` since its last start."""

    was_ready: bool = False
    state: State = "stopped"
    failing_looks: int = 0  # in a row

    @property
    def down(self) -> bool:
        """Whether requests wait there in vain."""
        return self.failing_looks >= DOWN_LOOKS

    def observe(
        self,
        *,
        running: bool,
        alive: int,
        replicas: dict[str, int],
        seen: Readiness | None,
        crash_looping: bool = False,
    ) -> State:
        """`running`: wanted up; `alive`: processes that run; `seen`: None where no answer came;
        `crash_looping`: a process ends whenever it is started."""
        if not running:
            self.was_ready = False
            self.state = "draining" if alive else "stopped"
        elif seen is not None and seen.ready:
            self.was_ready = True
            short = any(seen.workers.get(role, 0) < count for role, count in replicas.items())
            self.state = "degraded" if short else "ready"
        elif self.was_ready:
            self.state = "failing"
        else:
            self.state = "crash-looping" if crash_looping else "starting"
        self.failing_looks = self.failing_looks + 1 if self.state == "failing" else 0
        return self.state
