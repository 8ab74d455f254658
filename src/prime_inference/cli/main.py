"""The entry point of the `prime` command."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer

import prime_inference
from prime_inference.cli import config, inference, teams, wallet
from prime_inference.cli.failures import CommandFailed, WrongUsage
from prime_inference.cli.options import (
    JSON_KEY,
    PLAIN_KEY,
    Command,
    Group,
    Plain,
    wants_json,
    wants_plain,
)
from prime_inference.cli.terminal import Terminal


class Root(Group):
    """The whole command line: the one place where a failure becomes text and an exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[PLAIN_KEY] = wants_plain(args)
        ctx.meta[JSON_KEY] = wants_json(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        terminal = Terminal(plain=ctx.meta[PLAIN_KEY])
        try:
            return super().invoke(ctx)
        except CommandFailed as failure:
            if ctx.meta[JSON_KEY]:
                terminal.json_note({"error": failure.as_json()})
            else:
                terminal.error(failure)
            raise typer.Exit(failure.exit_code) from failure
        except typer.TyperException as error:
            if not ctx.meta[JSON_KEY]:
                raise
            terminal.json_note({"error": WrongUsage(error.format_message()).as_json()})
            raise typer.Exit(error.exit_code) from error


app = typer.Typer(
    name="prime",
    cls=Root,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_enable=False,  # a traceback of ours is for a bug report, not for a frame
)
app.add_typer(inference.app, name="inference")
app.add_typer(config.app, name="config")
app.add_typer(teams.app, name="teams")
app.command("wallet", cls=Command, epilog=wallet.EPILOG)(wallet.wallet)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"Prime Inference version: {prime_inference.__version__}")
        raise typer.Exit


@app.callback()
def prime(
    ctx: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-v", is_eager=True, callback=_print_version, help="Show the version."
        ),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option("--context", "-c", help="A saved environment, for this command only."),
    ] = None,
    plain: Plain = False,
) -> None:
    """Prime Inference: an open inference cloud behind one endpoint."""
    if context:
        before = os.environ.get("PRIME_CONTEXT")
        os.environ["PRIME_CONTEXT"] = context
        ctx.call_on_close(lambda: _restore_context(before))


def _restore_context(value: str | None) -> None:
    """A command line that runs inside another program leaves its environment as it was."""
    del os.environ["PRIME_CONTEXT"]
    if value is not None:
        os.environ["PRIME_CONTEXT"] = value


def main() -> None:
    """Run the command line of this process."""
    try:
        app()
    except KeyboardInterrupt:  # before or after the framework's own handling
        sys.exit(130)
