"""What can be wrong with specs and fleets, as one tree.

CannotStart (domain.errors)
└── FleetError
    ├── SpecMalformed    a file that is not TOML, or not of the shape of a spec
    ├── SpecImpossible   a spec whose parts exclude each other; `reasons` says why
    ├── PlanImpossible   no topology fits the hardware and the targets
    ├── FleetNotRunning  nobody supervises this fleet
    ├── FleetRunning     somebody supervises it already
    ├── FleetFrozen      somebody supervises it and does not answer
    ├── FleetRefused     the supervisor would not do what it was asked
    └── CrashLooping     a process ends whenever it is started; `log` has its last words
"""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.errors import CannotStart


class FleetError(CannotStart):
    """Any error of this package; the classes below say which."""


class SpecMalformed(FleetError):
    """The file cannot be read as what it should be; the message names file and field."""


class SpecImpossible(FleetError):
    """The parts of a spec exclude each other; `reasons` has every one of them."""

    def __init__(self, name: str, reasons: Sequence[str]) -> None:
        super().__init__("\n  ".join([f"{name} cannot work:", *reasons]))
        self.reasons = tuple(reasons)


class PlanImpossible(FleetError):
    """No topology of the model fits; the message has the reasons."""


class FleetNotRunning(FleetError):
    """No supervisor answers for the fleet."""


class FleetRunning(FleetError):
    """Another process supervises the fleet."""


class FleetFrozen(FleetError):
    """The supervisor is there and says nothing; `hint` says what to do."""

    def __init__(self, supervisor: int | None, seconds: float) -> None:
        who = f"process {supervisor}" if supervisor else "the process"
        super().__init__(
            f"The fleet's supervisor, {who}, has said nothing for {seconds:.0f} s: it is stopped,"
            " or has far too much to do."
        )
        pid = supervisor or "PROCESS"
        self.hint = (
            f"kill -CONT {pid} wakes one that was stopped, and it may do then what was asked."
            f" kill -KILL {pid} ends it and nothing else: then prime inference fleet up takes the"
            " fleet over, and prime inference fleet down ends it."
        )


class FleetRefused(FleetError):
    """The supervisor answered that it cannot do what it was asked."""


class CrashLooping(FleetError):
    """A process ended several times before it served, so waiting for it is of no use.

    `cause` is that of the last time; `hint` says what to do.
    """

    def __init__(
        self, deployment: str, process: str, restarts: int, cause: str, log: Sequence[str]
    ) -> None:
        said = f"{deployment}/{process} is crash-looping: {restarts} restarts, the last: {cause}."
        super().__init__("\n  ".join([said, *log]))
        self.deployment = deployment
        self.process = process
        self.restarts = restarts
        self.cause = cause
        self.log = tuple(log)
        self.fields = (deployment, process, restarts, cause, self.log)
        which = process if process == deployment else f"{deployment} {process}"
        self.hint = (
            f"It is started again and again. Its log: prime inference fleet logs {which}. When the"
            f" cause is mended: prime inference fleet restart {which}; where the cause is in the"
            " fleet's file: prime inference fleet down, then up."
        )
