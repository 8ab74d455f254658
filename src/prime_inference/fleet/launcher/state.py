"""What the launcher must know after its own restart, in one file.

Written before a process is started, so that none is forgotten; ids of processes are added
after. Should the file be lost, processes carry in their environment what must be known of them.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from prime_inference.fleet.caches import asks_file, reports_file
from prime_inference.fleet.fleet import LAUNCHERS_OWN, PlannedDeployment
from prime_inference.fleet.launcher.processes import Identity
from prime_inference.fleet.local import Process
from prime_inference.fleet.ready import replace_file

log = logging.getLogger(__name__)


class ProcessRecord(Struct):
    """A process as it was started last."""

    process: Process
    pid: int = 0
    started: int = 0
    served: bool = False  # in this run: if it answers no more, it is frozen

    @property
    def ports(self) -> set[int]:
        """Those given out to it."""
        return {self.process.port, *self.process.other_ports}

    @property
    def identity(self) -> Identity | None:
        return Identity(self.pid, self.started) if self.pid else None

    @property
    def lives(self) -> bool:
        identity = self.identity
        return identity is not None and identity.alive


class DeploymentRecord(Struct):
    """A deployment as it is wanted, which may differ from the fleet's file since."""

    port: int  # of the frontend: gateways know it, so it stays over restarts
    planned: PlannedDeployment  # what its processes were started as
    base: str = ""  # the folder that its sources are relative to
    running: bool = True
    replicas: dict[str, int] = {}
    filed: dict[str, int] = {}  # replicas that the file wanted last: a change there counts
    processes: dict[str, ProcessRecord] = {}

    @property
    def lives(self) -> bool:
        """Whether a process of it runs."""
        return any(one.lives for one in self.processes.values())

    @property
    def served(self) -> bool:
        """Whether what runs of it has served: a process of each kind has."""
        kinds = {"frontend", *self.replicas}
        return kinds <= {
            one.process.role for one in self.processes.values() if one.served and one.lives
        }

    def ports(self) -> set[int]:
        """Those given out to it and its processes."""
        return {self.port}.union(*(one.ports for one in self.processes.values()))


class FleetState(Struct):
    """The content of `state.json`."""

    file: str  # absolute path of the fleet's file
    deployments: dict[str, DeploymentRecord] = {}
    gateway: ProcessRecord | None = None

    def processes(self) -> Iterator[tuple[str, ProcessRecord]]:
        """By name in the fleet, as in their environment."""
        if self.gateway is not None:
            yield f"{LAUNCHERS_OWN}/{LAUNCHERS_OWN}", self.gateway
        for name, deployment in self.deployments.items():
            for process, record in deployment.processes.items():
                yield f"{name}/{process}", record

    def forget_ended(self) -> None:
        """Keep only what lives."""
        if self.gateway is not None and not self.gateway.lives:
            self.gateway = None
        self.deployments = {name: one for name, one in self.deployments.items() if one.lives}

    def ports(self) -> Iterator[int]:
        """Those given out."""
        if self.gateway is not None:
            yield from self.gateway.ports
        for deployment in self.deployments.values():
            yield from deployment.ports()


Carried = tuple[DeploymentRecord | None, Process]


def carried(record: DeploymentRecord | None, process: Process) -> str:
    """What a process of a deployment (none: the gateway) carries in its environment, so that a
    state that is lost can be found again."""
    return msgspec.json.encode((record and replace(record, processes={}), process)).decode()


class StateFolder:
    """Where one fleet keeps its state, its logs, its discovery and its socket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state_file = folder / "state.json"
        self.ready_file = folder / "deployments.json"
        self.caches_file = reports_file(self.ready_file)
        self.socket = folder / "control.sock"
        self.lock_file = folder / "supervisor.lock"
        self.logs = folder / "logs"

    def create(self) -> None:
        """Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)

    def log_file(self, deployment: str, process: str) -> Path:
        return self.logs / f"{deployment}.{process}.log"

    def discovery(self, deployment: str) -> Path:
        """Where the processes of a deployment find each other."""
        return self.folder / "discovery" / deployment

    def supervisor(self) -> int | None:
        """The process that supervises the fleet, or did last; None where nobody knows."""
        try:
            return int(self.lock_file.read_text())
        except (OSError, ValueError):
            return None

    def clear_gone(self, known: Collection[str]) -> None:
        """Remove what was made for deployments that are none of those."""
        for made in (self.folder / "discovery", self.folder / "models"):
            for entry in made.iterdir() if made.is_dir() else ():
                if entry.name not in known:
                    shutil.rmtree(entry, ignore_errors=True)

    def clear_told(self) -> None:
        """Remove what gateways follow. Raises OSError."""
        for file in (self.ready_file, self.caches_file, asks_file(self.caches_file)):
            file.unlink(missing_ok=True)

    def load(self) -> FleetState | None:
        """None where no fleet was started. What is no state is moved aside: what runs tells it
        (`living`). Raises OSError."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=FleetState)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, RecursionError) as error:
            aside = self.state_file.with_suffix(".broken")
            self.state_file.replace(aside)
            log.error("%s is no state, and is %s now: %s", self.state_file, aside, error)
            return None

    def save(self, state: FleetState) -> None:
        """Raises OSError."""
        replace_file(self.state_file, msgspec.json.encode(state), durable=True)
