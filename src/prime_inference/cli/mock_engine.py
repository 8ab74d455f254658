"""`prime inference mock-engine`: an engine without a model, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import msgspec
import typer
import uvloop

from prime_inference.engines.mock import MockEngine, UnknownBehaviour
from prime_inference.engines.mock.engine import CONTEXT_TOKENS, PLAIN_MODEL
from prime_inference.engines.mock.text import ANSWER_TOKENS


def mock_engine(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: a free one.")] = 0,
    model: Annotated[
        list[str] | None, typer.Option(help="Model to list; may be given several times.")
    ] = None,
    pace_ms: Annotated[float, typer.Option(help="Milliseconds between tokens.", min=0)] = 0.0,
    first_token_ms: Annotated[
        float, typer.Option(help="Milliseconds to the first token.", min=0)
    ] = 0.0,
    answer_tokens: Annotated[
        int, typer.Option(help="Tokens of an answer that nothing cuts short.", min=0)
    ] = ANSWER_TOKENS,
    context_tokens: Annotated[int, typer.Option(help="Context window.", min=1)] = CONTEXT_TOKENS,
    behaviour: Annotated[
        str, typer.Option(help="How to misbehave, e.g. cut-after-5.first-1; see --behaviours.")
    ] = "",
    behaviours: Annotated[bool, typer.Option(help="List the behaviours and exit.")] = False,
    api_key: Annotated[
        str | None, typer.Option(help="Key to ask for.", envvar="PRIME_MOCK_ENGINE_API_KEY")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", help="table or json.")] = "table",
) -> None:
    """Serve deterministic text over OpenAI's API, and misbehave on demand."""
    if behaviours:
        from prime_inference.engines.mock import behaviour as documentation

        typer.echo(documentation.__doc__)
        return
    if output not in ("table", "json"):
        raise typer.BadParameter("use table or json", param_hint="--output")
    try:
        engine = MockEngine(
            models=model or [PLAIN_MODEL],
            pace=pace_ms / 1000,
            first_token=first_token_ms / 1000,
            answer_tokens=answer_tokens,
            context_tokens=context_tokens,
            behaviour=behaviour,
            api_key=api_key,
        )
    except UnknownBehaviour as error:
        raise typer.BadParameter(str(error), param_hint="--behaviour") from None
    uvloop.run(_serve(engine, host, port, output))


async def _serve(engine: MockEngine, host: str, port: int, output: str) -> None:
    """Announce the engine, then serve until SIGINT or SIGTERM."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopped.set)
    try:
        base_url = await engine.start(host, port)
    except OSError as error:
        typer.echo(f"cannot listen on {host}:{port}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    if output == "json":
        line = msgspec.json.encode({"base_url": base_url, "models": engine.models})
        typer.echo(line.decode())
    else:
        typer.echo(f"mock engine at {base_url} serving {', '.join(engine.models)}")
    await stopped.wait()
    await engine.stop()
