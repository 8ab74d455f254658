"""`prime inference gateway`: the gateway alone, in front of an upstream that already runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.options import Plain, TextOrJson
from prime_inference.cli.serve import (
    EPILOG,
    ControlPort,
    Database,
    Host,
    Port,
    StateDir,
    billing_options,
    require_ports,
    run_server,
)
from prime_inference.cli.terminal import Terminal

__all__ = ["EPILOG", "gateway"]


def gateway(
    upstream: Annotated[
        str, typer.Option("--upstream", help="Base URL of the upstream's API, e.g. of a vLLM.")
    ],
    model_id: Annotated[str, typer.Option("--model-id", help="What clients call the model.")],
    upstream_model: Annotated[
        str | None,
        typer.Option("--upstream-model", help="What the upstream calls it. Default: the same."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option("--engine", help="What the upstream is: vllm, openai or llama.cpp."),
    ] = "vllm",
    slots: Annotated[
        int, typer.Option("--slots", min=1, help="Requests in flight at a time.")
    ] = 4096,
    context_tokens: Annotated[
        int, typer.Option("--context-tokens", min=1, help="The model's context window.")
    ] = 131_072,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    control_port: ControlPort = 8001,
    state_dir: StateDir = None,
    database: Database = None,
    redis: Annotated[
        str | None,
        typer.Option(
            "--redis", envvar="PRIME_REDIS", help="URL of what counts limits for all gateways."
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            "--replicas", min=1, help="Gateways that share the limits, for when Redis is away."
        ),
    ] = 1,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Serve one upstream that already runs.

    Examples:
      prime inference gateway --upstream http://127.0.0.1:9000/v1 --model-id acme/my-model
    """
    from prime_inference import compose
    from prime_inference.cli.folders import state_folder

    if engine not in compose.ENGINE_PARAMETERS:
        raise WrongUsage(f"--engine is one of {', '.join(compose.ENGINE_PARAMETERS)}.")
    listen = compose.ListenOptions(
        state_dir=(state_dir or state_folder(os.environ, Path.home())).absolute(),
        host=host,
        port=port,
        control_port=control_port,
        billing=billing_options(database, redis, replicas, shipper_process=True),
    )
    try:
        options = compose.GatewayOptions(
            listen, upstream, model_id, upstream_model, engine, slots, context_tokens
        )
    except ValueError as error:
        raise WrongUsage(f"--upstream: {error}") from error
    require_ports(host, port, control_port)
    run_server(
        lambda announce: compose.gateway(options, announce),
        Terminal(plain=plain),
        as_json=output == "json",
    )
