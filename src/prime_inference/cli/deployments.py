"""`prime inference deployments`: add, drain, move and remove while requests go on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_inference.cli.control_options import (
    ControlStateDir,
    ControlStateDirs,
    ControlUrl,
    ControlUrls,
    connect,
    tell,
)
from prime_inference.cli.failures import TimedOut
from prime_inference.cli.options import Command, Group, Plain, TableOrJson, TextOrJson, json_help
from prime_inference.cli.status import show_deployments
from prime_inference.cli.terminal import Terminal
from prime_inference.domain.fleet import MOST_SLOTS

if TYPE_CHECKING:
    from prime_inference.cli.control_client import ControlClient

EPILOG = json_help(
    "The fleet afterwards, as `prime inference status -o json` shows it; of several gateways"
    " {gateways: [{control_url, fleet or error}]}."
)
LOOK_SECONDS = 0.5  # between two looks at whether a deployment has drained

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Change the fleet of running gateways."
)  # fmt: skip

Name = Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="Its id.")]
Force = Annotated[
    bool, typer.Option("--force", help="Also if it is the last one that serves its model.")
]


@app.callback()
def group(plain: Plain = False) -> None:
    """Change the fleet of running gateways, each of which is told.

    The changes are kept in each gateway's state folder, over its fleet file. If one of several
    has not done it, the others have: the error says which, and the exit code is 1.
    """


@app.command("list", cls=Command, epilog=EPILOG)
def list_deployments(
    output: TableOrJson = "table",
    control_url: ControlUrl = None,
    state_dir: ControlStateDir = None,
    plain: Plain = False,
) -> None:
    """List the deployments of a gateway.

    Examples:
      prime inference deployments list
    """
    with connect(control_url, state_dir) as client:
        view = client.fleet()
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(view)
    else:
        show_deployments(view["deployments"], terminal)


@app.command(cls=Command, epilog=EPILOG)
def add(
    name: Name,
    model: Annotated[str, typer.Option("--model", help="A model of the fleet.")],
    datacenter: Annotated[str, typer.Option("--datacenter", help="A datacenter of the fleet.")],
    slots: Annotated[
        int, typer.Option("--slots", min=1, max=MOST_SLOTS, help="Requests it works on at a time.")
    ],
    base_url: Annotated[
        str, typer.Option("--base-url", help="Where it answers. None: `serve` starts it.")
    ] = "",
    engine: Annotated[
        str, typer.Option("--engine", help="vllm, openai, llama.cpp or mock.")
    ] = "vllm",
    upstream_model: Annotated[
        str, typer.Option("--upstream-model", help="What it calls the model. Default: the same.")
    ] = "",
    output: TextOrJson = "text",
    control_url: ControlUrls = None,
    state_dir: ControlStateDirs = None,
    plain: Plain = False,
) -> None:
    """Add a deployment.

    Examples:
      prime inference deployments add west-3 --model acme/echo-1 --datacenter west --slots 64 \
--base-url http://10.1.0.3:8000/v1
    """
    entry: dict[str, Any] = {
        "id": name,
        "model": model,
        "datacenter": datacenter,
        "slots": slots,
        "engine": engine,
        "base_url": base_url,
        "upstream_model": upstream_model,
    }
    tell(
        control_url,
        state_dir,
        lambda client: client.add(entry),
        lambda view: f"{name} is added.",
        output,
        plain=plain,
    )


@app.command(cls=Command, epilog=EPILOG)
def drain(
    name: Name,
    wait: Annotated[
        float, typer.Option("--wait", min=0, help="Seconds to wait until its requests have ended.")
    ] = 0.0,
    force: Force = False,
    output: TextOrJson = "text",
    control_url: ControlUrls = None,
    state_dir: ControlStateDirs = None,
    plain: Plain = False,
) -> None:
    """Offer a deployment no more requests; those it has go on.

    Examples:
      prime inference deployments drain west-1 --wait 600
      prime inference deployments drain west-1 --control-url http://10.0.0.1:8001 \
--control-url http://10.0.0.2:8001
    """

    def ask(client: ControlClient) -> dict[str, Any]:
        view = client.change(name, "drain", {"force": force})
        deadline = time.monotonic() + wait
        while (left := _in_flight(view, name)) and wait:
            if time.monotonic() >= deadline:
                raise TimedOut(f"{name} still has {left} requests after {wait:g} s.")
            time.sleep(LOOK_SECONDS)
            view = client.fleet()
        return view

    def done(view: dict[str, Any]) -> str:
        return f"{name} drains: {_in_flight(view, name)} requests in flight."

    tell(control_url, state_dir, ask, done, output, plain=plain)


@app.command(cls=Command, epilog=EPILOG)
def resume(
    name: Name,
    output: TextOrJson = "text",
    control_url: ControlUrls = None,
    state_dir: ControlStateDirs = None,
    plain: Plain = False,
) -> None:
    """Offer a drained deployment requests again.

    Examples:
      prime inference deployments resume west-1
    """
    tell(
        control_url,
        state_dir,
        lambda client: client.change(name, "resume"),
        lambda view: f"{name} serves again.",
        output,
        plain=plain,
    )


@app.command(cls=Command, epilog=EPILOG)
def move(
    name: Name,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="Where it answers from now on.")
    ] = None,
    datacenter: Annotated[
        str | None, typer.Option("--datacenter", help="Where it is from now on.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", min=1, max=MOST_SLOTS, help="Requests it works on at a time."),
    ] = None,
    output: TextOrJson = "text",
    control_url: ControlUrls = None,
    state_dir: ControlStateDirs = None,
    plain: Plain = False,
) -> None:
    """Give a deployment another address, datacenter or number of slots.

    Examples:
      prime inference deployments move west-1 --base-url http://10.2.0.1:8000/v1 --datacenter east
    """
    place = {"base_url": base_url, "datacenter": datacenter, "slots": slots}
    given = {key: value for key, value in place.items() if value is not None}
    tell(
        control_url,
        state_dir,
        lambda client: client.change(name, "move", given),
        lambda view: f"{name} has moved; requests at its old place go on.",
        output,
        plain=plain,
    )


@app.command(cls=Command, epilog=EPILOG)
def remove(
    name: Name,
    force: Force = False,
    output: TextOrJson = "text",
    control_url: ControlUrls = None,
    state_dir: ControlStateDirs = None,
    plain: Plain = False,
) -> None:
    """Take a deployment out of the fleet; its requests go on.

    Examples:
      prime inference deployments remove west-1
    """
    tell(
        control_url,
        state_dir,
        lambda client: client.remove(name, force=force),
        lambda view: f"{name} is removed.",
        output,
        plain=plain,
    )


def _in_flight(view: dict[str, Any], name: str) -> int:
    return sum(int(one["in_flight"]) for one in view["deployments"] if one["id"] == name)
