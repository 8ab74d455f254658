"""The gateway in front of the fleet, as one more child process."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from prime_inference.fleet.errors import FleetRefused
from prime_inference.fleet.fleet import LAUNCHERS_OWN, GatewayEntry
from prime_inference.fleet.launcher.keeper import GRACE_SECONDS, Keeper
from prime_inference.fleet.launcher.ports import Ports, can_listen
from prime_inference.fleet.launcher.processes import start
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.state import FleetState, ProcessRecord, StateFolder, carried
from prime_inference.fleet.local import Process

log = logging.getLogger(__name__)

NAME = LAUNCHERS_OWN
LOOK_SECONDS = 0.25  # a probe costs a millisecond
DRAIN_SECONDS = GRACE_SECONDS - 6  # what is broken off then is told so in 6


class FleetGateway:
    """Keeps the gateway as the file wants it; one that runs otherwise, or is not wanted any more,
    ends first."""

    def __init__(
        self,
        entry: GatewayEntry,
        state: FleetState,
        folder: StateFolder,
        prober: Prober,
        ports: Ports,
        save: Callable[[], None],
    ) -> None:
        self.enabled = entry.enabled
        self._state = state
        self._folder = folder
        self._prober = prober
        self._ports = ports
        self._save = save
        self._ready = False  # it answers, and knows a deployment
        before = state.gateway
        self._wanted: Process | None = None
        lives = before is not None and before.lives
        if before is not None and not lives and not all(map(can_listen, before.ports)):
            ports.give_back(before.ports)  # somebody else has one of them
            before = state.gateway = None
        if entry.enabled:
            process = None if before is None else before.process
            self._wanted = gateway_process(entry, folder, ports, process)
        if self._wanted is not None and not lives:
            state.gateway = ProcessRecord(self._wanted)
        self._keeper = self._keeper_of(state.gateway)

    def _keeper_of(self, record: ProcessRecord | None) -> Keeper | None:
        if record is None:
            return None
        return gateway_keeper(record, self._folder, self._prober, self._save)

    async def keep(self) -> None:
        """Start it, and look at it for ever. Raises FleetRefused where the old one does not end."""
        keeper = self._keeper
        if keeper is not None and not self._is_wanted(keeper.record.process):
            log.info("the gateway of before ends: it is not what the file wants")
            await keeper.end()
            if keeper.alive:
                raise FleetRefused("The gateway of before could not be ended.")
            self._state.gateway = ProcessRecord(self._wanted) if self._wanted else None
            kept = self._state.gateway.ports if self._state.gateway else set()
            self._ports.give_back(keeper.record.ports - kept)
            keeper = self._keeper = self._keeper_of(self._state.gateway)
            self._save()
        if keeper is None:
            return
        keeper.run()
        while True:
            ready = await self._prober.succeeds(keeper.record.process.port, "/ready")
            self._ready = ready and pid(self._folder) == keeper.record.pid
            if self._ready and keeper.note_serving():
                self._save()
            await asyncio.sleep(LOOK_SECONDS)

    def _is_wanted(self, process: Process) -> bool:
        return self._wanted is not None and process.argv == self._wanted.argv

    async def restart(self) -> None:
        if self._keeper is not None:
            await self._keeper.restart()

    async def end(self) -> None:
        """For good."""
        if self._keeper is not None:
            await self._keeper.end()

    def leave(self) -> None:
        """Stop watching; it goes on."""
        if self._keeper is not None:
            self._keeper.leave()

    def status(self) -> dict[str, Any] | None:
        """As plain values; None where none is wanted."""
        if self._keeper is None or not self.enabled:
            return None
        process = self._keeper.record.process
        return self._keeper.status() | {
            "ready": self._ready and self._is_wanted(process),
            "base_url": base_url(process),
            "control_url": f"http://127.0.0.1:{process.port}",
            "api_key": api_key(self._folder),
        }


def gateway_process(
    entry: GatewayEntry, folder: StateFolder, ports: Ports, before: Process | None = None
) -> Process:
    """`prime inference fleet gateway` over the list of ready deployments; where any port is
    right it has those of `before`."""
    port = entry.port or (_port(before) if before else ports.take())
    control = entry.control_port or (before.port if before else ports.take())
    return Process(
        name=NAME,
        role=NAME,
        argv=(
            "-m", "prime_inference.cli", "inference", "fleet", "gateway",
            str(folder.ready_file),
            "--port", str(port),
            "--control-port", str(control),
            "--state-dir", str(folder.folder / NAME),
            "--drain-seconds", str(DRAIN_SECONDS),
            "--plain",
        ),
        environment={},
        port=control,
        other_ports=(port,),
    )  # fmt: skip


def gateway_keeper(
    record: ProcessRecord, folder: StateFolder, prober: Prober, save: Callable[[], None]
) -> Keeper:
    """Keeps the gateway alive; it runs in this interpreter's environment."""

    def start_gateway(record: ProcessRecord) -> int:
        return start(
            [sys.executable, *record.process.argv],
            record.process.environment,
            folder.log_file(NAME, NAME),
            fleet=str(folder.folder),
            name=f"{NAME}/{NAME}",
            record=carried(None, record.process),
        )

    async def responds(record: ProcessRecord) -> bool:
        return await prober.responds(record.process.port, "/live")

    return Keeper(record, start_gateway, save, responds, folder.log_file(NAME, NAME))


def pid(folder: StateFolder) -> int | None:
    """Of the gateway that has this fleet's ports; None where none has them.

    Whoever answers on a port of it may be a gateway of another fleet.
    """
    try:
        document = msgspec.json.decode((folder.folder / NAME / "endpoint.json").read_bytes())
    except (OSError, msgspec.DecodeError):
        return None
    return document.get("pid") if isinstance(document, dict) else None


def base_url(process: Process) -> str:
    """The public API of a gateway process."""
    return f"http://127.0.0.1:{_port(process)}/api/v1"


def _port(process: Process) -> int:
    return int(process.argv[process.argv.index("--port") + 1])


def api_key(folder: StateFolder) -> str | None:
    """The gateway's own key, once it has made one."""
    file: Path = folder.folder / NAME / "api_key"
    try:
        return file.read_text().strip()
    except OSError:
        return None
