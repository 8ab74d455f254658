"""`prime inference mock-engine`: an engine without a model, for tests and benchmarks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from prime_inference.cli.failures import WrongUsage
from prime_inference.cli.options import Plain, TextOrJson, json_help
from prime_inference.cli.ports import HIGHEST_PORT, unavailable
from prime_inference.cli.terminal import Terminal

if TYPE_CHECKING:
    from prime_inference.engines.mock import MockEngine

EPILOG = json_help("One line once the engine answers: {base_url, models: [id, ...]}")


def mock_engine(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0: any free one.", min=0, max=HIGHEST_PORT)
    ] = 0,
    model: Annotated[
        list[str] | None, typer.Option(help="Model to list; may be given several times.")
    ] = None,
    pace_ms: Annotated[float, typer.Option(help="Milliseconds between tokens.", min=0)] = 0.0,
    first_token_ms: Annotated[
        float, typer.Option(help="Milliseconds to the first token.", min=0)
    ] = 0.0,
    answer_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of an answer that nothing cuts short. Default: 64.", min=0),
    ] = None,
    context_tokens: Annotated[
        int | None, typer.Option(help="Context window. Default: 131072.", min=1)
    ] = None,
    behaviour: Annotated[
        str, typer.Option(help="How to misbehave, e.g. cut-after-5.first-1; see --behaviours.")
    ] = "",
    behaviours: Annotated[bool, typer.Option(help="List the behaviours and exit.")] = False,
    api_key: Annotated[
        str | None, typer.Option(help="Key to ask for.", envvar="PRIME_MOCK_ENGINE_API_KEY")
    ] = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Serve deterministic text over OpenAI's API, and misbehave on demand.

    Examples:
      prime inference mock-engine --port 9000 --pace-ms 20
      prime inference mock-engine --behaviour cut-after-5
      prime inference mock-engine --behaviours
    """
    terminal = Terminal(plain=plain)
    if behaviours:
        from prime_inference.engines.mock import behaviour as documentation

        terminal.line(documentation.__doc__ or "")
        return
    settings: dict[str, Any] = {
        "models": model or None,
        "answer_tokens": answer_tokens,
        "context_tokens": context_tokens,
        "api_key": api_key,
    }
    engine = _engine(
        pace=pace_ms / 1000,
        first_token=first_token_ms / 1000,
        behaviour=behaviour,
        **{name: value for name, value in settings.items() if value is not None},
    )

    import uvloop

    uvloop.run(_serve(engine, host, port, terminal, as_json=output == "json"))


def _engine(**settings: Any) -> MockEngine:
    """Raises WrongUsage for a behaviour that does not exist."""
    from prime_inference.engines.mock import MockEngine, UnknownBehaviour

    try:
        return MockEngine(**settings)
    except UnknownBehaviour as error:
        raise WrongUsage(f"--behaviour: {error}") from error


async def _serve(
    engine: MockEngine, host: str, port: int, terminal: Terminal, *, as_json: bool
) -> None:
    """Announce the engine, then serve until SIGINT or SIGTERM."""
    import asyncio
    import signal

    import msgspec

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stopped.set)
    try:
        base_url = await engine.start(host, port)
    except OSError as error:
        raise unavailable("--port", host, port, error) from error
    if as_json:
        line = msgspec.json.encode({"base_url": base_url, "models": engine.models})
        terminal.line(line.decode())
    else:
        terminal.line(f"mock engine at {base_url} serving {', '.join(engine.models)}")
    await stopped.wait()
    await engine.stop()
