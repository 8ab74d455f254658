"""`prime inference gateway`: the gateway alone, in front of an upstream that already runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from prime_inference.cli.clocks import (
    ConnectSeconds,
    FirstTokenSeconds,
    IdleSeconds,
    WholeSeconds,
    clock_limits,
)
from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.options import Plain, TextOrJson, one_of
from prime_inference.cli.serve import (
    EPILOG,
    ControlPort,
    Database,
    DrainSeconds,
    FleetConfig,
    Host,
    Port,
    StateDir,
    billing_options,
    require_ports,
    run_server,
)
from prime_inference.cli.terminal import Terminal
from prime_inference.domain.fleet import MOST_SLOTS

if TYPE_CHECKING:
    from prime_inference.compose import ListenOptions
    from prime_inference.domain.models import EngineKind

__all__ = ["EPILOG", "gateway"]

Upstream = Annotated[
    str | None,
    typer.Option("--upstream", help="Base URL of the upstream's API, e.g. of a vLLM."),
]
ModelId = Annotated[str | None, typer.Option("--model-id", help="What clients call the model.")]
Redis = Annotated[
    str | None,
    typer.Option(
        "--redis",
        envvar="PRIME_REDIS_URL",
        show_envvar=False,
        metavar="URL",
        help="Redis or Valkey where several gateways agree on slots and breakers."
        " Default: PRIME_REDIS_URL, else none: this is the only gateway.",
    ),
]
UpstreamModel = Annotated[
    str | None,
    typer.Option("--upstream-model", help="What the upstream calls it. Default: the same."),
]
Engine = Annotated[
    str,
    typer.Option("--engine", help="What the upstream is: vllm, openai or llama.cpp."),
]
Slots = Annotated[
    int, typer.Option("--slots", min=1, max=MOST_SLOTS, help="Requests in flight at a time.")
]
ContextTokens = Annotated[
    int, typer.Option("--context-tokens", min=1, help="The model's context window.")
]
ToolFormat = Annotated[
    str | None,
    typer.Option(
        "--tool-format",
        help="Find tool calls in the model's text, which is in this format"
        " (`toolcalls formats`). Default: the upstream finds them.",
    ),
]
Reasoning = Annotated[
    str,
    typer.Option(
        "--reasoning",
        metavar="none|opened|optional",
        help="With --tool-format, whether the model thinks first: not at all, begun by the"
        " prompt, or as it likes.",
        callback=one_of("--reasoning", "none", "opened", "optional"),
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas", min=1, help="Gateways that share the limits, for when Redis is away."
    ),
]


@contextlib.contextmanager
def redis_understood() -> Iterator[None]:
    """Raises WrongUsage where the options' URL is none of Redis."""
    try:
        yield
    except ValueError as error:
        raise WrongUsage("--redis is like redis://host:6379/0, rediss:// or unix://.") from error


def gateway(
    upstream: Upstream = None,
    model_id: ModelId = None,
    config: FleetConfig = None,
    redis: Redis = None,
    upstream_model: UpstreamModel = None,
    engine: Engine = "vllm",
    slots: Slots = 4096,
    context_tokens: ContextTokens = 131_072,
    tool_format: ToolFormat = None,
    reasoning: Reasoning = "none",
    host: Host = "127.0.0.1",
    port: Port = 8000,
    control_port: ControlPort = 8001,
    state_dir: StateDir = None,
    connect_seconds: ConnectSeconds = None,
    first_token_seconds: FirstTokenSeconds = None,
    idle_seconds: IdleSeconds = None,
    whole_seconds: WholeSeconds = None,
    drain_seconds: DrainSeconds = None,
    database: Database = None,
    replicas: Replicas = 1,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Serve upstreams that already run: one of them, or the fleet of a file.

    Examples:
      prime inference gateway --upstream http://127.0.0.1:9000/v1 --model-id acme/my-model
      prime inference gateway --config fleet.toml --redis redis://10.0.0.1:6379/0
    """
    from prime_inference import compose
    from prime_inference.cli.folders import state_folder

    kind = known_engine(engine)
    require_format(tool_format, reasoning)
    with redis_understood():
        listen = compose.ListenOptions(
            state_dir=(state_dir or state_folder(os.environ, Path.home())).absolute(),
            host=host,
            port=port,
            control_port=control_port,
            redis_url=redis,
            drain_seconds=compose.DRAIN_SECONDS if drain_seconds is None else drain_seconds,
            billing=billing_options(database, redis, replicas, shipper_process=True),
            clocks=clock_limits(
                connect=connect_seconds,
                first_token=first_token_seconds,
                idle=idle_seconds,
                whole=whole_seconds,
            ),
        )
    terminal = Terminal(plain=plain)
    if config is not None:
        if upstream is not None or model_id is not None:
            raise WrongUsage("--config names every upstream: leave --upstream and --model-id out.")
        serve_config(config, listen, terminal, as_json=output == "json")
        return
    if upstream is None or model_id is None:
        raise WrongUsage("Give --upstream and --model-id, or --config.")
    try:
        options = compose.GatewayOptions(
            listen, upstream, model_id, upstream_model, kind, slots, context_tokens, tool_format,
            cast(Literal["none", "opened", "optional"], reasoning),
        )  # fmt: skip
    except ValueError as error:
        raise WrongUsage(f"--upstream: {error}") from error
    require_ports(host, port, control_port)
    run_server(
        lambda announce: compose.gateway(options, announce),
        terminal,
        as_json=output == "json",
    )


def known_engine(name: str) -> EngineKind:
    """Raises WrongUsage."""
    from prime_inference import compose

    if name not in compose.ENGINE_PARAMETERS:
        raise WrongUsage(f"--engine is one of {', '.join(compose.ENGINE_PARAMETERS)}.")
    return name


def require_format(tool_format: str | None, reasoning: str) -> None:
    """Whether calls can be found in the text. Raises WrongUsage."""
    from prime_inference.domain.errors import InvalidRequest
    from prime_inference.toolcalls.format import format_named

    try:
        if tool_format is not None:
            format_named(tool_format)
    except InvalidRequest as error:
        raise WrongUsage(f"--tool-format: {error}") from None
    if reasoning != "none" and tool_format is None:
        raise WrongUsage("--reasoning goes with --tool-format: else the upstream finds it.")


def serve_config(config: Path, listen: ListenOptions, terminal: Terminal, *, as_json: bool) -> None:
    """Serve the fleet of a file. Raises PortUnavailable, ServerFailed."""
    from prime_inference import compose_fleet

    fleet = compose_fleet.FleetOptions(listen, config.absolute())
    require_ports(listen.host, listen.port, listen.control_port)
    run_server(
        lambda announce: compose_fleet.gateway_fleet(fleet, announce), terminal, as_json=as_json
    )
