"""The gateway in front of the fleet, as one more child process."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from prime_inference.fleet.fleet import LAUNCHERS_OWN, GatewayEntry
from prime_inference.fleet.launcher.keeper import Keeper
from prime_inference.fleet.launcher.ports import Ports
from prime_inference.fleet.launcher.processes import start
from prime_inference.fleet.launcher.readiness import Prober
from prime_inference.fleet.launcher.state import ProcessRecord, StateFolder
from prime_inference.fleet.local import Process

NAME = LAUNCHERS_OWN


def gateway_process(entry: GatewayEntry, folder: StateFolder, ports: Ports) -> Process:
    """`prime inference fleet gateway` over the list of ready deployments."""
    port, control = entry.port or ports.take(), entry.control_port or ports.take()
    return Process(
        name=NAME,
        role=NAME,
        argv=(
            "-m", "prime_inference.cli", "inference", "fleet", "gateway",
            str(folder.ready_file),
            "--port", str(port),
            "--control-port", str(control),
            "--state-dir", str(folder.folder / NAME),
            "--plain",
        ),
        environment={},
        port=control,
    )  # fmt: skip


def gateway_keeper(record: ProcessRecord, folder: StateFolder, prober: Prober) -> Keeper:
    """Keeps the gateway alive; it runs in this interpreter's environment."""

    log = folder.log_file(NAME, NAME)

    def start_gateway(record: ProcessRecord) -> int:
        return start(
            [sys.executable, *record.process.argv],
            record.process.environment,
            log,
            fleet=str(folder.folder),
            name=f"{NAME}/{NAME}",
        )

    async def responds(record: ProcessRecord) -> bool:
        return await prober.responds(record.process.port, "/live")

    return Keeper(record, start_gateway, lambda: None, responds, log)


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
    port = process.argv[process.argv.index("--port") + 1]
    return f"http://127.0.0.1:{port}/api/v1"


def api_key(folder: StateFolder) -> str | None:
    """The gateway's own key, once it has made one."""
    file: Path = folder.folder / NAME / "api_key"
    try:
        return file.read_text().strip()
    except OSError:
        return None
