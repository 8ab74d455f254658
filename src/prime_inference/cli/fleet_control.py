"""`prime inference fleet control` and `gateway`: what runs a fleet beyond one launcher."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_inference.cli.fleets import DynamoPython, File, explained, found_state_dir, run_to_end
from prime_inference.cli.gateway import Redis, Replicas, redis_understood
from prime_inference.cli.options import Plain, TextOrJson, json_help
from prime_inference.cli.serve import (
    ControlPort,
    Database,
    DrainSeconds,
    Host,
    Port,
    StateDir,
    billing_options,
    require_ports,
    run_server,
)
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.fleet.controller.run import Controlled

CONTROL_EPILOG = json_help("{fleet, deployments_file, folders: {DATACENTER: folder}}")


def control(
    file: File,
    python: DynamoPython = None,
    state_dir: StateDir = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Make datacenters what a file says, as it changes: start, replace, drain, overflow.

    A datacenter is this machine, or the cluster that its table `kubernetes` names. Gateways
    follow the list of ready deployments that this writes. Ending this command ends nothing
    else; the next one goes on. What leaves the file is drained. Once this has ended, `fleet down
    --fleet NAME.DATACENTER` ends what it left.

    Examples:
      prime inference fleet control fleet.toml
      prime inference fleet gateway STATE/controllers/NAME/deployments.json
      prime inference fleet status --fleet NAME.DATACENTER
    """
    from prime_inference.fleet.controller import run
    from prime_inference.fleet.launcher.run import dynamo_python

    terminal = Terminal(plain=plain)

    def announce(what: Controlled) -> None:
        if output == "json":
            folders = {name: str(folder) for name, folder in what.folders.items()}
            terminal.json(
                {
                    "fleet": what.fleet,
                    "deployments_file": str(what.deployments_file),
                    "folders": folders,
                }
            )
            return
        terminal.success(f"controlling {what.fleet}")
        terminal.line(f"gateways follow {what.deployments_file}")

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every probe
    with explained():
        interpreter = python or dynamo_python(os.environ, Path.cwd())
        run_to_end(
            run.control(
                file.absolute(),
                found_state_dir(state_dir),
                python=interpreter,
                announce=announce,
            )
        )


def gateway(
    deployments: Annotated[
        Path, typer.Argument(metavar="FILE", help="List of ready deployments; may change.")
    ],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    control_port: ControlPort = 8001,
    state_dir: StateDir = None,
    redis: Redis = None,
    database: Database = None,
    replicas: Replicas = 1,
    drain_seconds: DrainSeconds = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Serve the deployments that a file lists, following its changes.

    Examples:
      prime inference fleet gateway deployments.json
      prime inference fleet gateway deployments.json --redis redis://10.0.0.1:6379/0
    """
    from prime_inference import compose

    with redis_understood():
        listen = compose.ListenOptions(
            state_dir=found_state_dir(state_dir),
            host=host,
            port=port,
            control_port=control_port,
            redis_url=redis,
            billing=billing_options(database, redis, replicas, shipper_process=True),
            drain_seconds=compose.DRAIN_SECONDS if drain_seconds is None else drain_seconds,
        )
    require_ports(host, port, control_port)
    options = compose.FleetGatewayOptions(listen, deployments)
    run_server(
        lambda announce: compose.fleet_gateway(options, announce),
        Terminal(plain=plain),
        as_json=output == "json",
    )
