"""What a supervisor writes for others: the state, and the list that gateways follow."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from prime_inference.fleet.launcher.state import FleetState, StateFolder
from prime_inference.fleet.ready import ReadyDeployment, write_ready

log = logging.getLogger(__name__)


class WrittenFiles:
    """A full disk must not end what keeps the fleet: `unwritten` are the files that are out of
    date, and why, until they can be written."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._listed: tuple[Sequence[ReadyDeployment], Sequence[str]] | None = None
        self.unwritten: dict[str, str] = {}

    @property
    def state_is_old(self) -> bool:
        return self._folder.state_file.name in self.unwritten

    def forget(self) -> None:
        """What was written is gone."""
        self._listed = None

    def save(self, state: FleetState) -> None:
        self._write(self._folder.state_file, lambda: self._folder.save(state))

    def tell(self, ready: Sequence[ReadyDeployment], down: Sequence[str]) -> None:
        """Tell the gateways, if anything changed."""
        file = self._folder.ready_file
        if (ready, down) != self._listed and self._write(
            file, lambda: write_ready(file, ready, down)
        ):
            self._listed = ready, down

    def _write(self, file: Path, write: Callable[[], None]) -> bool:
        """Whether it could be written."""
        try:
            write()
        except OSError as error:
            if file.name not in self.unwritten:
                log.error("%s cannot be written: %s", file, error.strerror or error)
            self.unwritten[file.name] = error.strerror or str(error)
            return False
        self.unwritten.pop(file.name, None)
        return True
