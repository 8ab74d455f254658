"""`prime inference serve`: gateway and local engine on this machine."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_inference.cli.failures import PortUnavailable, ServerFailed, WrongUsage
from prime_inference.cli.options import Plain, TextOrJson, json_help
from prime_inference.cli.ports import HIGHEST_PORT, require_port
from prime_inference.cli.progress import DownloadProgress
from prime_inference.cli.terminal import Terminal
from prime_inference.domain.fleet import MOST_SLOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from prime_inference.compose import Announce, Endpoint, ServeOptions
    from prime_inference.compose_billing import BillingOptions
    from prime_inference.engines.local.weights import Progress

EPILOG = json_help(
    "One line once the server answers: {base_url, control_url, api_key, model}",
)

Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every network.")
]
Port = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=HIGHEST_PORT, help="Port of the public API; 0: any free one."
    ),
]
ControlPort = Annotated[
    int,
    typer.Option(
        "--control-port",
        min=0,
        max=HIGHEST_PORT,
        help="Port of health and metrics; 0: any free one.",
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="Folder of keys and usage. Default: PRIME_STATE_DIR, else"
        " ~/.local/state/prime-inference.",
    ),
]

DrainSeconds = Annotated[
    float | None,
    typer.Option(
        "--drain-seconds",
        min=0,
        help="Time for answers in flight once it is told to stop; then they end with an error."
        " Default: 25.",
    ),
]
FleetConfig = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FLEET.toml",
        help="Serve the fleet of this file, and follow it.",
    ),
]

Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="PRIME_DATABASE",
        help="Where teams, prices and bills are kept: sqlite, sqlite:FILE, postgresql://..."
        " Default: nowhere; one key, and nobody is billed.",
    ),
]


CacheDir = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        help="Folder of fetched weights. Default: PRIME_CACHE_DIR, else ~/.cache/prime-inference.",
    ),
]
ModelFile = Annotated[
    Path | None,
    typer.Option(
        "--model",
        metavar="FILE.gguf",
        help="Model to serve. Default: SmolLM2-135M-Instruct, fetched once.",
    ),
]
ModelId = Annotated[
    str | None,
    typer.Option("--model-id", help="What clients call it. Default: from the file's name."),
]
Slots = Annotated[
    int,
    typer.Option(
        "--slots", min=1, max=MOST_SLOTS, help="Answers that are written at the same time."
    ),
]
ContextTokens = Annotated[
    int | None,
    typer.Option(
        "--context-tokens",
        min=1,
        help="Context window. Default: what the model was trained with.",
    ),
]
Private = Annotated[
    bool,
    typer.Option(
        "--private",
        hidden=True,
        help="Stop when standard input ends, and remove the state folder.",
    ),
]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 8000,
    control_port: ControlPort = 8001,
    state_dir: StateDir = None,
    cache_dir: CacheDir = None,
    model: ModelFile = None,
    model_id: ModelId = None,
    slots: Slots = 2,
    context_tokens: ContextTokens = None,
    config: FleetConfig = None,
    drain_seconds: DrainSeconds = None,
    database: Database = None,
    output: TextOrJson = "text",
    private: Private = False,
    plain: Plain = False,
) -> None:
    """Serve a model on this machine: one endpoint, OpenAI's API.

    Prints the base URL and the API key, which is made on first start and kept in the state
    folder. Ctrl-C drains; a second Ctrl-C stops at once.

    Examples:
      prime inference serve
      prime inference serve --model ./model.gguf --model-id acme/my-model
      prime inference serve --database sqlite
      prime inference serve --port 0 --control-port 0 -o json
      prime inference serve --config examples/two-datacenters.toml
    """
    from prime_inference import compose
    from prime_inference.cli.folders import cache_folder, state_folder

    terminal = Terminal(plain=plain)
    if model is not None and not model.is_file():
        raise WrongUsage(f"There is no file {model}.")
    if config is not None and (model, model_id, context_tokens) != (None, None, None):
        raise WrongUsage("--config names every model: leave out --model and what goes with it.")
    state = state_dir or state_folder(os.environ, Path.home())
    options = compose.ServeOptions(
        state_dir=state.absolute(),
        cache_dir=(cache_dir or cache_folder(os.environ, Path.home())).absolute(),
        host=host,
        port=port,
        control_port=control_port,
        model_file=model,
        model_id=model_id,
        slots=slots,
        context_tokens=context_tokens,
        drain_seconds=compose.DRAIN_SECONDS if drain_seconds is None else drain_seconds,
        billing=billing_options(database),
    )
    require_ports(host, port, control_port)
    if private:
        threading.Thread(target=_stop_when_stdin_closes, daemon=True).start()
    with DownloadProgress("weights of the default model", plain=plain) as progress:
        run_server(
            lambda announce: _server(options, config, announce, progress),
            terminal,
            as_json=output == "json",
        )
    if private:  # whoever started this may have been killed
        shutil.rmtree(options.state_dir, ignore_errors=True)


def _server(
    options: ServeOptions, config: Path | None, announce: Announce, progress: Progress
) -> Coroutine[Any, Any, None]:
    """What serves a fleet, or one model."""
    from prime_inference import compose, compose_fleet

    if config is None:
        return compose.serve(options, announce, progress)
    fleet = compose_fleet.FleetOptions(options.listen, config.absolute())
    return compose_fleet.serve_fleet(fleet, options.cache_dir, announce, progress)


def billing_options(
    database: str | None,
    redis: str | None = None,
    replicas: int = 1,
    *,
    shipper_process: bool = False,
) -> BillingOptions | None:
    """Raises WrongUsage."""
    from prime_inference.compose_billing import BillingOptions

    if database is None:
        return None
    try:
        return BillingOptions(database, redis, shipper_process, replicas)
    except ValueError as error:
        raise WrongUsage(f"--database: {error}") from error


def run_server(
    server: Callable[[Announce], Coroutine[Any, Any, None]], terminal: Terminal, *, as_json: bool
) -> None:
    """Run a server and announce it. Raises PortUnavailable, ServerFailed, typer.Exit."""
    import logging

    import msgspec

    from prime_inference import compose
    from prime_inference.domain.errors import CannotStart
    from prime_inference.gateway.stop_signal import StoppedAtOnce

    level = logging.WARNING if as_json else logging.INFO  # a program that reads JSON asks metrics
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log where the weights are

    def announce(endpoint: Endpoint) -> None:
        if as_json:
            terminal.line(msgspec.json.encode(endpoint).decode())
        else:
            terminal.line(announcement(endpoint))

    # a shell starts what is to run in the background with SIGINT ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        compose.run(server(announce))
    except StoppedAtOnce as stopped:
        raise typer.Exit(128 + stopped.number) from stopped
    except CannotStart as error:
        raise ServerFailed(str(error)) from error
    except OSError as error:  # taken by another program since it was tried
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortUnavailable(
            "A port was taken by another program while the server started.",
            hint="Choose others with --port and --control-port; 0 is any free one.",
        ) from error


def require_ports(host: str, port: int, control_port: int) -> None:
    """Raises PortUnavailable."""
    if port == control_port != 0:
        raise PortUnavailable(
            f"--port and --control-port are both {port}.",
            hint="The control listener is not for the public: it has a port of its own.",
        )
    require_port("--port", host, port)
    require_port("--control-port", host, control_port)


def _stop_when_stdin_closes() -> None:
    """Ask this process to stop once whoever started it is gone."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def announcement(endpoint: Endpoint) -> str:
    """What a person needs to use the server."""
    return f"""\
Ready.
  base URL   {endpoint.base_url}
  API key    {endpoint.api_key}
  model      {endpoint.model}
  control    {endpoint.control_url}

From Python (pip install openai):
  from openai import OpenAI

  client = OpenAI(base_url="{endpoint.base_url}", api_key="{endpoint.api_key}")
  answer = client.chat.completions.create(
      model="{endpoint.model}",
      messages=[{{"role": "user", "content": "Say hello."}}],
  )
  print(answer.choices[0].message.content)

From another terminal of this machine:
  export PRIME_INFERENCE_URL={endpoint.base_url} PRIME_API_KEY={endpoint.api_key}
  prime inference chat {endpoint.model} "Say hello."

Ctrl-C stops it.
"""
