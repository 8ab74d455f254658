"""What the launcher must know after its own restart, in one file.

Written before a process is started, so that none is forgotten; ids of processes are added
after. What is not in the file is not known: nothing else is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from prime_inference.fleet.caches import reports_file
from prime_inference.fleet.errors import SpecMalformed
from prime_inference.fleet.launcher.processes import Identity
from prime_inference.fleet.local import Process
from prime_inference.fleet.ready import replace_file


class ProcessRecord(Struct):
    """A process as it was started last."""

    process: Process
    pid: int = 0
    started: int = 0

    @property
    def identity(self) -> Identity | None:
        return Identity(self.pid, self.started) if self.pid else None


class DeploymentRecord(Struct):
    """A deployment as it is wanted, which may differ from the fleet's file since."""

    port: int  # of the frontend: gateways know it, so it stays over restarts
    running: bool = True
    replicas: dict[str, int] = {}
    processes: dict[str, ProcessRecord] = {}


class FleetState(Struct):
    """The content of `state.json`."""

    file: str  # absolute path of the fleet's file
    deployments: dict[str, DeploymentRecord] = {}

    def ports(self) -> Iterator[int]:
        """Those given out to processes, so far as the state knows them."""
        for deployment in self.deployments.values():
            yield deployment.port
            yield from (record.process.port for record in deployment.processes.values())


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

    def load(self) -> FleetState | None:
        """None where no fleet was started. Raises SpecMalformed."""
        try:
            return msgspec.json.decode(self.state_file.read_bytes(), type=FleetState)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            raise SpecMalformed(f"{self.state_file} cannot be read: {error}.") from error

    def save(self, state: FleetState) -> None:
        """Raises OSError."""
        replace_file(self.state_file, msgspec.json.encode(state))
