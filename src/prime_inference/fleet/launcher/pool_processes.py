"""What processes a deployment is to have on this machine, and the ports that they get."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from prime_inference.fleet.launcher.ports import Ports, can_listen
from prime_inference.fleet.launcher.sources import model_source
from prime_inference.fleet.launcher.state import DeploymentRecord, ProcessRecord, StateFolder
from prime_inference.fleet.local import Process, frontend_process, worker_process

log = logging.getLogger(__name__)


class PoolProcesses:
    """The frontend and the workers of each pool, by the deployment's record."""

    def __init__(
        self, record: DeploymentRecord, folder: StateFolder, base: Path, ports: Ports
    ) -> None:
        self._record = record
        self._folder = folder
        self._base = base
        self._ports = ports

    @property
    def discovery(self) -> Path:
        return self._folder.discovery(self._record.planned.id)

    def names(self) -> Iterator[str]:
        """Of the processes that are wanted."""
        yield "frontend"
        for role, count in self._record.replicas.items():
            yield from (f"{role}-{index}" for index in range(count))

    def make(self) -> None:
        """Record those that are wanted and not known. Raises SpecMalformed, OSError, and none is
        made then."""
        source = functools.cache(self._source)  # made once, and not where nothing is
        with self._ports.taking() as take:
            missing = [name for name in self.names() if name not in self._record.processes]
            made = [self._new(name, take, source) for name in missing]
        self._record.processes |= {process.name: ProcessRecord(process) for process in made}

    def drop(self, name: str) -> None:
        """Forget a process that has ended."""
        record = self._record.processes.pop(name, None)
        if record is not None:
            self._ports.give_back(record.ports - {self._record.port})  # the frontend's stays

    def move(self, record: ProcessRecord) -> bool:
        """Give a process that is to be started other ports where somebody else has one of its
        own: nobody of ours serves there. Whether it got some. Raises SpecMalformed, OSError."""
        if all(map(can_listen, record.ports)):
            return False
        name, before = record.process.name, record.ports
        with self._ports.taking() as take:
            if name == "frontend":
                self._record.port = take()
            record.process = self._new(name, take, self._source)
        self._ports.give_back(before)
        log.warning(
            "deployment %s: somebody else has a port of %s: it listens on %d now",
            *(self._record.planned.id, name, record.process.port),
        )
        return True

    def _new(self, name: str, take: Callable[[], int], source: Callable[[], str]) -> Process:
        spec = self._record.planned.spec
        if name == "frontend":
            return frontend_process(spec, self.discovery, self._record.port)
        role, _, index = name.rpartition("-")
        return worker_process(
            spec, role, int(index), source=source(), discovery=self.discovery, free_port=take
        )

    def _source(self) -> str:
        """Of the model. Raises SpecMalformed, OSError."""
        models = self._folder.folder / "models" / self._record.planned.id
        return model_source(self._record.planned.spec, models, self._base)
