"""`prime inference keys`: API keys over their life."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.options import Command, Group, NewModel, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

ONE = (
    "{id, tenant, name, last_four, created_at, expires_at, revoked_at,"
    " earlier_texts: [{last_four, until}], models, endpoints, networks}"
)
KEYS = json_help(f"{{keys: [{ONE}], total_count}}")
MADE = json_help(f"{ONE}, and key: the key's text, which is never shown again")
KEY = json_help(ONE)
DAY_S = 86_400
MOST_DAYS = 10 * 366  # ten years, as the API has it

app = typer.Typer(cls=Group, no_args_is_help=True, help="API keys over their life.")
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="The key's id, not its text.")]


@app.callback()
def group(plain: Plain = False) -> None:
    """API keys over their life."""


@app.command("list", cls=Command, epilog=KEYS)
def list_keys(
    team: Annotated[str | None, typer.Option("--team", help="Only this tenant's.")] = None,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """List keys; never their texts.

    Examples:
      prime inference keys list
      prime inference keys list --team team_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("keys", tenant=team)
    columns = ("id", "tenant", "name", "last_four", "created_at", "expires_at", "revoked_at")
    print_rows(Terminal(plain=plain), output, found, "API keys", found["keys"], columns)


@app.command("create", cls=Command, epilog=MADE)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for.")],
    team: Annotated[str, typer.Option("--team", help="Who pays: a team's or person's id.")],
    model: Annotated[
        list[str] | None, typer.Option("--model", help="Only this model; may be repeated.")
    ] = None,
    endpoint: Annotated[
        list[str] | None,
        typer.Option("--endpoint", help="Only this path, e.g. chat/completions; may be repeated."),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option("--network", help="Only from here, e.g. 10.0.0.0/8; may be repeated."),
    ] = None,
    spend_cap: Annotated[
        str | None, typer.Option("--spend-cap", metavar="USD", help="Most it may ever spend.")
    ] = None,
    expires_in_days: Annotated[
        float | None,
        typer.Option("--expires-in-days", min=0, max=MOST_DAYS, help="When it ends by itself."),
    ] = None,
    new_model: NewModel = False,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Create a key. Its text is shown now and never again.

    Examples:
      prime inference keys create laptop --team team_0123456789abcdef
      prime inference keys create ci --team team_0123456789abcdef --spend-cap 5
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().post(
        "keys",
        name=name,
        tenant=team,
        models=model or None,
        endpoints=endpoint or None,
        networks=network or None,
        spend_cap_usd=spend_cap,
        new_model=new_model,
        expires_in_seconds=None if expires_in_days is None else expires_in_days * DAY_S,
    )
    print_fields(Terminal(plain=plain), output, made)


@app.command("rotate", cls=Command, epilog=MADE)
def rotate(
    key: KeyId,
    overlap_hours: Annotated[
        float,
        typer.Option(
            "--overlap-hours",
            min=0,
            max=MOST_DAYS * 24,
            help="How long the present text still works; 0 ends every earlier text at once.",
        ),
    ] = 24.0,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Give a key a new text; the present one works for the overlap, earlier ones to their ends.

    Examples:
      prime inference keys rotate a1B2c3D4e5F6
      prime inference keys rotate a1B2c3D4e5F6 --overlap-hours 0
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().post(f"keys/{key}/rotate", overlap_seconds=overlap_hours * 3600)
    print_fields(Terminal(plain=plain), output, made)


@app.command("revoke", cls=Command, epilog=KEY)
def revoke(key: KeyId, output: TableOrJson = "table", plain: Plain = False) -> None:
    """End a key for ever; every gateway has heard of it within 10 seconds.

    Examples:
      prime inference keys revoke a1B2c3D4e5F6
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    gone = AdminClient().post(f"keys/{key}/revoke")
    print_fields(Terminal(plain=plain), output, gone)
