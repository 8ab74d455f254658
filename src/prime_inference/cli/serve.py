"""`prime inference serve`: gateway and local engine on this machine."""

from __future__ import annotations

import errno
import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prime_inference.cli.failures import PortUnavailable, WrongUsage
from prime_inference.cli.options import Plain, TextOrJson, json_help
from prime_inference.cli.ports import HIGHEST_PORT, require_port
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.compose import Endpoint, ServeOptions

EPILOG = json_help(
    "One line once the server answers: {base_url, control_url, api_key, model}",
)

Port = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=HIGHEST_PORT, help="Port of the public API; 0: any free one."
    ),
]


def serve(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; 0.0.0.0 is every network.")
    ] = "127.0.0.1",
    port: Port = 8000,
    control_port: Annotated[
        int,
        typer.Option(
            "--control-port",
            min=0,
            max=HIGHEST_PORT,
            help="Port of health and metrics; 0: any free one.",
        ),
    ] = 8001,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            "--state-dir",
            help="Folder of keys and usage. Default: PRIME_STATE_DIR, else"
            " ~/.local/state/prime-inference.",
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None,
        typer.Option(
            "--cache-dir",
            help="Folder of fetched weights. Default: PRIME_CACHE_DIR, else"
            " ~/.cache/prime-inference.",
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="FILE.gguf",
            help="Model to serve. Default: SmolLM2-135M-Instruct, fetched once.",
        ),
    ] = None,
    model_id: Annotated[
        str | None,
        typer.Option("--model-id", help="What clients call it. Default: from the file's name."),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", min=1, help="Answers that are written at the same time.")
    ] = 4,
    context_tokens: Annotated[
        int | None,
        typer.Option(
            "--context-tokens",
            min=1,
            help="Context window. Default: what the model was trained with.",
        ),
    ] = None,
    output: TextOrJson = "text",
    until_stdin_closes: Annotated[
        bool,
        typer.Option("--until-stdin-closes", hidden=True, help="Stop when standard input ends."),
    ] = False,
    plain: Plain = False,
) -> None:
    """Serve a model on this machine: one endpoint, OpenAI's API.

    Prints the base URL and the API key, which is made on first start and kept in the state
    folder. Ctrl-C drains; a second Ctrl-C stops at once.

    Examples:
      prime inference serve
      prime inference serve --model ./model.gguf --model-id acme/my-model
      prime inference serve --port 0 --control-port 0 -o json
    """
    from prime_inference.cli.folders import cache_folder, state_folder
    from prime_inference.compose import ServeOptions

    terminal = Terminal(plain=plain)
    if model is not None and not model.is_file():
        raise WrongUsage(f"There is no file {model}.")
    state = state_dir or state_folder(os.environ, Path.home())
    options = ServeOptions(
        state_dir=state.absolute(),
        cache_dir=(cache_dir or cache_folder(os.environ, Path.home())).absolute(),
        host=host,
        port=port,
        control_port=control_port,
        model_file=model,
        model_id=model_id,
        slots=slots,
        context_tokens=context_tokens,
    )
    _require_ports(options)
    if until_stdin_closes:
        threading.Thread(target=_stop_when_stdin_closes, daemon=True).start()
    _run(options, terminal, as_json=output == "json")


def _run(options: ServeOptions, terminal: Terminal, *, as_json: bool) -> None:
    import msgspec

    from prime_inference import compose

    def announce(endpoint: Endpoint) -> None:
        if as_json:
            terminal.line(msgspec.json.encode(endpoint).decode())
        else:
            terminal.line(announcement(endpoint))

    try:
        compose.run(compose.serve(options, announce))
    except OSError as error:  # taken by another program since it was tried
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortUnavailable(
            f"A port of {options.host} was taken while the server started.",
            hint="Choose others with --port and --control-port; 0 is any free one.",
        ) from error


def _require_ports(options: ServeOptions) -> None:
    """Raises PortUnavailable."""
    if options.port == options.control_port != 0:
        raise PortUnavailable(
            f"--port and --control-port are both {options.port}.",
            hint="The control listener is not for the public: it has a port of its own.",
        )
    require_port("--port", options.host, options.port)
    require_port("--control-port", options.host, options.control_port)


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
  prime inference chat {endpoint.model} "Say hello."

Ctrl-C stops it.
"""
