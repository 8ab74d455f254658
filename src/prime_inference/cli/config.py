"""`prime config`: which server to ask, and as whom."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from prime_inference.cli.config_file import ConfigFile, config_path, load_config
from prime_inference.cli.environments import (
    delete_environment,
    environment_names,
    in_environment,
    save_environment,
)
from prime_inference.cli.failures import ConfigInvalid, WrongUsage
from prime_inference.cli.options import Command, Group, Plain, TableOrJson, TextOrJson, json_help
from prime_inference.cli.settings import (
    HEADER_TEXT,
    Setting,
    current_config,
    current_settings,
    is_http_url,
)
from prime_inference.cli.terminal import Column, Terminal

SETTINGS_EPILOG = json_help(
    "What holds now: {config_file, environment, inference_url, api_key, team_id}; the last"
    " three are {value, source} or null; the key is masked"
)

app = typer.Typer(cls=Group, no_args_is_help=True, help="Configure the CLI.")


@app.callback()
def group(plain: Plain = False) -> None:
    """Which server to ask, and as whom: ~/.prime/config.json.

    Environment variables go before the file: PRIME_API_KEY, PRIME_TEAM_ID,
    PRIME_INFERENCE_URL, PRIME_CONTEXT (a saved environment for one command).
    """


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def view(output: TableOrJson = "table", plain: Plain = False) -> None:
    """Show what is set, and where it comes from.

    Examples:
      prime config view
      prime config view -o json
    """
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(_settings_document())
        return
    config = current_config()
    rows = [["environment", config.environment, str(config.path)]]
    rows += [
        [name, setting.value if setting else "not set", setting.source if setting else ""]
        for name, setting in _shown_settings().items()
    ]
    columns = [Column("setting", style="cyan"), Column("value", style="green"), Column("from")]
    terminal.table("Prime CLI Configuration", columns, rows)


def _shown_settings() -> dict[str, Setting | None]:
    settings = current_settings()
    key = settings.api_key and Setting(masked(settings.api_key.value), settings.api_key.source)
    return {"inference_url": settings.inference_url, "api_key": key, "team_id": settings.team_id}


def _settings_document() -> dict[str, object]:
    config = current_config()
    values = {
        name: setting and {"value": setting.value, "source": setting.source}
        for name, setting in _shown_settings().items()
    }
    return {"config_file": str(config.path), "environment": config.environment, **values}


def _report(text: str, output: str, *, plain: bool) -> None:
    """Say what was done; in JSON, what holds since."""
    terminal = Terminal(plain=plain)
    if output == "json":
        terminal.json(_settings_document())
    else:
        terminal.success(text)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def set_api_key(
    api_key: Annotated[
        str | None,
        typer.Argument(
            metavar="API_KEY",
            help="Left out, it is asked for, or read from a pipe; '' clears it.",
        ),
    ] = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Set the API key.

    Examples:
      prime config set-api-key
      prime config set-api-key < key.txt
    """
    if api_key is None:
        api_key = _asked("API key (Enter clears it)", secret=True)
    api_key = _header_text(api_key, "API key")
    _write_config(api_key=api_key)
    done = f"API key {masked(api_key)} is set." if api_key else "The API key is cleared."
    _report(done, output, plain=plain)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def set_team_id(
    team_id: Annotated[str, typer.Argument(metavar="TEAM_ID", help="'' clears it.")],
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Set the team whose account pays.

    Examples:
      prime config set-team-id cmabcdefghijklmnopqrstuvw
    """
    team_id = _header_text(team_id, "team ID")
    _write_config(team_id=team_id or None, team_name=None, team_role=None)
    _report(f"Team {team_id} is set." if team_id else "No team is set.", output, plain=plain)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def remove_team_id(output: TextOrJson = "text", plain: Plain = False) -> None:
    """Remove the team, to use the personal account.

    Examples:
      prime config remove-team-id
    """
    _write_config(team_id=None, team_name=None, team_role=None)
    _report("No team is set.", output, plain=plain)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def set_inference_url(
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Such as http://127.0.0.1:8000/api/v1."),
    ] = None,
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Set the server to ask.

    Examples:
      prime config set-inference-url https://inference.example.com/api/v1
    """
    url = (_asked("Inference URL", secret=False) if url is None else url).strip().rstrip("/")
    if not is_http_url(url):
        raise WrongUsage(f"{url!r} is not an http(s) URL.")
    _write_config(inference_url=url)
    _report(f"The inference URL is {url}.", output, plain=plain)


@app.command(cls=Command, epilog=json_help("{current, environments: [name, ...]}"))
def envs(output: TableOrJson = "table", plain: Plain = False) -> None:
    """List the saved environments.

    Examples:
      prime config envs
    """
    terminal = Terminal(plain=plain)
    config = current_config()
    names = environment_names(config)
    if output == "json":
        terminal.json({"current": config.environment, "environments": names})
        return
    rows = [[name, "in use" if name == config.environment else ""] for name in names]
    terminal.table("Environments", [Column("name", style="cyan"), Column("")], rows)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def save(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Save the account and URLs in use, API key included, as an environment.

    Examples:
      prime config save staging
    """
    settings = current_settings()
    values = {
        "inference_url": settings.inference_url.value,
        "api_key": settings.api_key.value if settings.api_key else "",
        "team_id": settings.team_id.value if settings.team_id else None,
    }
    file = save_environment(_own_config().with_values(**values), name)
    _report(f"Saved as {file}, API key included.", output, plain=plain)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def use(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Switch to a saved environment, or to `production`, the hosted service.

    Examples:
      prime config use staging
      prime config use production
    """
    config = in_environment(_own_config(), name)
    config.save()
    _report(f"Environment {config.environment} is in use.", output, plain=plain)


@app.command(cls=Command, epilog=SETTINGS_EPILOG)
def delete(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Delete a saved environment.

    Examples:
      prime config delete staging
    """
    delete_environment(_own_config(), name)
    _report(f"Environment {name} is deleted.", output, plain=plain)


def masked(secret: str) -> str:
    """Enough of a secret to tell it from another."""
    return f"{secret[:6]}...{secret[-4:]}" if len(secret) > 16 else "***"


def _own_config() -> ConfigFile:
    """The config file as it is on disk, to be changed. Raises ConfigInvalid."""
    context = os.environ.get("PRIME_CONTEXT")
    if context:
        raise ConfigInvalid(
            f"The environment {context!r} is in use for this command only and is not changed.",
            hint=f"Switch to it first: prime config use {context}",
        )
    return load_config(config_path(Path.home()))


def _write_config(**changes: object) -> None:
    _own_config().with_values(**changes).save()


def _asked(prompt: str, *, secret: bool) -> str:
    """A value that was not on the command line: typed, or from a pipe."""
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    return str(typer.prompt(prompt, hide_input=secret, default="", show_default=False, err=True))


def _header_text(value: str, name: str) -> str:
    value = value.strip()
    if value and not HEADER_TEXT.fullmatch(value):
        raise WrongUsage(f"The {name} has blanks or characters that are not ASCII.")
    return value
