"""`prime inference`: the group of commands that ask models and serve them."""

from __future__ import annotations

import typer

from prime_inference.cli import (
    bench,
    chat,
    deployments,
    fleet,
    gateway,
    keys,
    kv,
    ledger,
    limits,
    mock_engine,
    models,
    plan,
    prices,
    reservations,
    serve,
    status,
    toolcalls,
    usage,
)
from prime_inference.cli.options import Command, Group, Plain

app = typer.Typer(cls=Group, no_args_is_help=True, help="Ask models, and serve them.")
app.command("models", cls=Command, epilog=models.EPILOG)(models.models)
app.command("chat", cls=Command, epilog=chat.EPILOG)(chat.chat)
app.command("serve", cls=Command, epilog=serve.EPILOG)(serve.serve)
app.command("gateway", cls=Command, epilog=gateway.EPILOG)(gateway.gateway)
app.command("status", cls=Command, epilog=status.EPILOG)(status.status)
app.add_typer(deployments.app, name="deployments")
app.command("mock-engine", cls=Command, epilog=mock_engine.EPILOG)(mock_engine.mock_engine)
app.command("usage", cls=Command, epilog=usage.EPILOG)(usage.usage)
app.add_typer(keys.app, name="keys")
app.add_typer(limits.app, name="limits")
app.add_typer(prices.app, name="prices")
app.add_typer(reservations.app, name="reservations")
app.add_typer(ledger.app, name="ledger")
app.command("plan", cls=Command, epilog=plan.EPILOG)(plan.plan)
app.add_typer(fleet.app, name="fleet")
app.add_typer(bench.app, name="bench")
app.add_typer(kv.app, name="kv")
app.add_typer(kv.eval_app, name="eval")
app.add_typer(toolcalls.app, name="toolcalls")


@app.callback()
def group(plain: Plain = False) -> None:
    """Ask models, and serve them.

    The server to ask is PRIME_INFERENCE_URL, else inference_url in
    ~/.prime/config.json, else the one that `prime inference serve` runs
    on this machine (http://127.0.0.1:8000/api/v1).
    """
