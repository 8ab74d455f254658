"""`prime inference fleet`: datacenters described, rendered, started and watched."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_inference.cli.fleet_control import CONTROL_EPILOG, control, gateway
from prime_inference.cli.fleet_view import (
    Progress,
    prometheus_text,
    show_caches,
    show_status,
)
from prime_inference.cli.fleets import (
    DynamoPython,
    File,
    FleetCrashLooping,
    FleetFailed,
    explained,
    found_folder,
    found_state_dir,
    log_files,
    run_to_end,
)
from prime_inference.cli.options import (
    Command,
    Group,
    Plain,
    TableOrJson,
    TextOrJson,
    json_help,
    one_of,
)
from prime_inference.cli.serve import EPILOG as SERVE_EPILOG
from prime_inference.cli.serve import StateDir
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.fleet.errors import CrashLooping
    from prime_inference.fleet.launcher.run import Status

app = typer.Typer(cls=Group, no_args_is_help=True, help="Datacenters: describe, start, watch.")

STATUS_SHAPE = (
    "{fleet, folder, supervisor, unwritten: {FILE: why}, gateway: {name, state, ready, pid, port,"
    " base_url, control_url, api_key, served, restarts, last_exit} or null, deployments: [{id,"
    " model, datacenter, wanted, state, down, changed, base_url, replicas, workers, processes:"
    " [{name, state, pid, port, served, restarts, last_exit: {cause, status, ran_seconds, log:"
    " [line, ...]} or null}, ...]}, ...]}"
)
STATUS_EPILOG = json_help(STATUS_SHAPE)

FleetName = Annotated[
    str | None,
    typer.Option("--fleet", help="Name of the fleet. Default: the only one of the state folder."),
]
DeploymentId = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id in the file.")]


@app.command(cls=Command, epilog=STATUS_EPILOG)
def up(
    file: File,
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Return when all is ready; it goes on.")
    ] = False,
    python: DynamoPython = None,
    wait_seconds: Annotated[
        float, typer.Option(min=1, help="How long --detach waits for all to be ready.")
    ] = 120.0,
    silent: Annotated[
        bool, typer.Option("--silent", hidden=True, help="Do not print the fleet's status.")
    ] = False,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Start a fleet on this machine and keep it running; Ctrl-C ends it.

    Should this command itself die, the fleet goes on: the next `up` takes it over, and replaces,
    one deployment after another, what the file has otherwise by then. A process that ends is
    started again, later and later up to half a minute. One that ended three times and never
    served is told, with its last words; --detach waits for it no longer then.

    Examples:
      prime inference fleet up examples/two-datacenters-dynamo.toml
      prime inference fleet up fleet.toml --detach -o json
    """
    import logging

    from prime_inference.fleet.fleet import read_fleet
    from prime_inference.fleet.launcher import run

    terminal = Terminal(plain=plain)
    began = time.monotonic()

    def announce(status: Status) -> None:
        if not silent:
            show_status(terminal, status, output)
        terminal.note(f"ready after {time.monotonic() - began:.1f} s")

    def stuck(error: CrashLooping) -> None:
        terminal.error(FleetCrashLooping(str(error), hint=error.hint))

    with explained():
        folder = run.fleet_folder(found_state_dir(state_dir), read_fleet(file))
        interpreter = python or run.dynamo_python(os.environ, Path.cwd())
        if detach:
            child = run.detach(file, folder, python=interpreter)
            waiting = run.until_ready(
                folder,
                wait_seconds,
                progress=Progress(terminal),
                supervised=lambda: child.poll() is None,
                supervisor=child.pid,
            )
            try:
                announce(run_to_end(waiting))
            except KeyboardInterrupt:
                terminal.note("The fleet goes on: prime inference fleet status, or down.")
                raise
            return
        level = logging.WARNING if output == "json" else logging.INFO
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every probe
        run_to_end(run.supervise(file, folder, python=interpreter, announce=announce, stuck=stuck))


@app.command(cls=Command, epilog=STATUS_EPILOG)
def status(
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show deployments, their state and their processes.

    Examples:
      prime inference fleet status
      prime inference fleet status --fleet two-datacenters -o json
    """
    _tell(fleet, state_dir, output, plain=plain, verb="status")


CACHES_EPILOG = json_help(
    STATUS_SHAPE + " with, in each deployment, caches: {prompt_tokens, cached_tokens, hit_rate,"
    " host_queries, host_hits, host_hit_rate, queue_seconds, transfer_seconds}; null: not said"
)


@app.command(cls=Command, epilog=CACHES_EPILOG)
def caches(
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Print Prometheus' text format instead.")
    ] = False,
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Show how well the KV caches serve each deployment: hits, second tier, waits, transfers.

    Examples:
      prime inference fleet caches
      prime inference fleet caches --prometheus
    """
    from prime_inference.fleet.launcher import control

    terminal = Terminal(plain=plain)
    with explained():
        folder = found_folder(fleet, state_dir)
        status = run_to_end(control.ask(folder, control.Command("caches")))
    if prometheus:
        terminal.answer(prometheus_text(status))
    elif output == "json":
        terminal.json(status)
    else:
        show_caches(terminal, status)


@app.command(cls=Command, epilog=STATUS_EPILOG)
def scale(
    deployment: DeploymentId,
    role: Annotated[str, typer.Argument(help="Pool: prefill, decode or aggregated.")],
    replicas: Annotated[int, typer.Argument(help="Workers that it shall have.")],
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Change how many workers a pool has; those too many finish their answers first.

    Examples:
      prime inference fleet scale tiny-a decode 3
    """
    arguments = {"deployment": deployment, "role": role, "replicas": replicas}
    _tell(fleet, state_dir, output, plain=plain, verb="scale", **arguments)


@app.command(cls=Command, epilog=STATUS_EPILOG)
def drain(
    deployment: DeploymentId,
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Take a deployment from the gateways, let its answers finish, end it.

    Examples:
      prime inference fleet drain tiny-a
    """
    _tell(fleet, state_dir, output, plain=plain, verb="drain", deployment=deployment)


@app.command(cls=Command, epilog=STATUS_EPILOG)
def restart(
    deployment: DeploymentId,
    process: Annotated[
        str | None, typer.Argument(help="One process. Default: all workers, one after another.")
    ] = None,
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Replace workers one after another, or start a deployment that was drained.

    Examples:
      prime inference fleet restart tiny-a
      prime inference fleet restart tiny-a decode-1
    """
    arguments = {"deployment": deployment, "process": process}
    _tell(fleet, state_dir, output, plain=plain, verb="restart", **arguments)


@app.command(cls=Command, epilog=json_help("{down: name}"))
def down(
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """End a fleet and everything it started, whether or not `up` still runs.

    Examples:
      prime inference fleet down
    """
    from prime_inference.fleet.launcher.run import bring_down

    terminal = Terminal(plain=plain)
    with explained():
        folder = found_folder(fleet, state_dir)
        run_to_end(bring_down(folder))
    if output == "json":
        terminal.json({"down": folder.folder.name})
    else:
        terminal.success(f"{folder.folder.name} is down")


@app.command(cls=Command, epilog=json_help("{PROCESS: [line, ...], ...}"))
def logs(
    deployment: DeploymentId,
    process: Annotated[str | None, typer.Argument(help="One process. Default: all.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Last lines of each.")] = 20,
    fleet: FleetName = None,
    state_dir: StateDir = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Show the last lines that processes wrote.

    Examples:
      prime inference fleet logs tiny-a
      prime inference fleet logs tiny-a decode-1 -n 100
    """
    from prime_inference.fleet.launcher.exits import last_lines

    terminal = Terminal(plain=plain)
    with explained():
        folder = found_folder(fleet, state_dir)
    files = log_files(folder, deployment, process)
    if not files:
        raise FleetFailed(f"There is no log {deployment}.{process or '*'}.log in {folder.logs}.")
    last = {file.name.split(".")[1]: last_lines(file, lines) for file in files}
    if output == "json":
        terminal.json(last)
        return
    for name, written in last.items():
        terminal.note(f"== {deployment}/{name}")
        for line in written:
            terminal.line(line)


@app.command(cls=Command, epilog=json_help("kubernetes: a List of objects for kubectl apply"))
def render(
    target: Annotated[
        str,
        typer.Argument(
            metavar="kubernetes|commands|local",
            callback=one_of("TARGET", "kubernetes", "commands", "local"),
        ),
    ],
    file: File,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="Only this one. Default: all.")
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Of Kubernetes.")] = "default",
    plain: Plain = False,
) -> None:
    """Print a fleet as Kubernetes objects (JSON), as shell commands, or as local processes.

    Examples:
      prime inference fleet render kubernetes fleet.toml --datacenter dc-a | kubectl apply -f -
      prime inference fleet render commands fleet.toml
    """
    from prime_inference.fleet.fleet import read_fleet
    from prime_inference.fleet.render import rendered

    terminal = Terminal(plain=plain)
    with explained():
        for line in rendered(read_fleet(file), target, datacenter, namespace):
            terminal.line(line)


# -- what they share


def _tell(
    fleet: str | None,
    state_dir: Path | None,
    output: str,
    *,
    plain: bool,
    **command: Any,
) -> None:
    """Send a command to the supervisor and show the fleet after it."""
    from prime_inference.fleet.launcher import control

    with explained():
        folder = found_folder(fleet, state_dir)
        after = run_to_end(control.ask(folder, control.Command(**command)))
    show_status(Terminal(plain=plain), after, output)


app.command(cls=Command, epilog=CONTROL_EPILOG)(control)
app.command(cls=Command, epilog=SERVE_EPILOG)(gateway)
