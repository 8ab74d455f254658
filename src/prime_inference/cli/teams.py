"""`prime teams`: who pays, and who may spend for whom."""

from __future__ import annotations

from typing import Annotated

import typer

from prime_inference.cli.options import Command, Group, Plain, TableOrJson, json_help
from prime_inference.cli.terminal import Terminal

TEAMS = json_help("{teams: [{teamId, name, slug, createdAt, payment}], total_count}")
PEOPLE = json_help("{people: [{userId, name, slug, createdAt, payment}], total_count}")
MEMBERS = json_help("{members: [{userId, name, role}], total_count}")
ONE_TEAM = json_help("{teamId, name, slug, createdAt, payment}")
ONE_PERSON = json_help("{userId, name, slug, createdAt, payment}")
PAYMENT = json_help("{tenant, payment}")
ONE_MEMBER = json_help("{teamId, userId, role?}")

app = typer.Typer(cls=Group, no_args_is_help=True, help="Teams and the people in them.")
Team = Annotated[str, typer.Argument(metavar="TEAM", help="The team's id.")]
Person = Annotated[str, typer.Argument(metavar="PERSON", help="The person's id.")]
Slug = Annotated[str, typer.Option("--slug", help="A short name: a-z, 0-9 and dashes.")]


@app.callback()
def group(plain: Plain = False) -> None:
    """Teams and the people in them."""


@app.command("list", cls=Command, epilog=TEAMS)
def list_teams(output: TableOrJson = "table", plain: Plain = False) -> None:
    """List the teams.

    Examples:
      prime teams list
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("teams")
    columns = ("teamId", "name", "slug", "createdAt")
    print_rows(Terminal(plain=plain), output, found, "Teams", found["teams"], columns)


@app.command("people", cls=Command, epilog=PEOPLE)
def list_people(output: TableOrJson = "table", plain: Plain = False) -> None:
    """List the people; each has an account of his own.

    Examples:
      prime teams people
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get("people")
    columns = ("userId", "name", "slug", "createdAt")
    print_rows(Terminal(plain=plain), output, found, "People", found["people"], columns)


@app.command("create", cls=Command, epilog=ONE_TEAM)
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called.")],
    slug: Slug,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Create a team.

    Examples:
      prime teams create "Acme Robotics" --slug acme
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().post("teams", name=name, slug=slug)
    print_fields(Terminal(plain=plain), output, made)


@app.command("create-person", cls=Command, epilog=ONE_PERSON)
def create_person(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who it is.")],
    slug: Slug,
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Create a person's account.

    Examples:
      prime teams create-person "Ann Lee" --slug ann
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().post("people", name=name, slug=slug)
    print_fields(Terminal(plain=plain), output, made)


@app.command("payment", cls=Command, epilog=PAYMENT)
def payment(
    tenant: Annotated[str, typer.Argument(metavar="TENANT", help="A team's or person's id.")],
    how: Annotated[str, typer.Argument(metavar="HOW", help="prepaid or invoiced.")],
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Set how a tenant pays: prepaid ones are refused what their wallet does not hold.

    Examples:
      prime teams payment team_0123456789abcdef prepaid
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().put(f"tenants/{tenant}/payment", payment=how)
    print_fields(Terminal(plain=plain), output, made)


@app.command("members", cls=Command, epilog=MEMBERS)
def members(team: Team, output: TableOrJson = "table", plain: Plain = False) -> None:
    """List the members of a team.

    Examples:
      prime teams members team_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_rows

    found = AdminClient().get(f"teams/{team}/members")
    columns = ("userId", "name", "role")
    print_rows(Terminal(plain=plain), output, found, "Members", found["members"], columns)


@app.command("add", cls=Command, epilog=ONE_MEMBER)
def add(
    team: Team,
    person: Person,
    role: Annotated[
        str, typer.Option("--role", help="owner, admin, member, or viewer, who bills nothing.")
    ] = "member",
    output: TableOrJson = "table",
    plain: Plain = False,
) -> None:
    """Make a person a member of a team, or change the role.

    Examples:
      prime teams add team_0123456789abcdef user_0123456789abcdef --role viewer
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    made = AdminClient().put(f"teams/{team}/members/{person}", role=role)
    print_fields(Terminal(plain=plain), output, made)


@app.command("remove", cls=Command, epilog=ONE_MEMBER)
def remove(team: Team, person: Person, output: TableOrJson = "table", plain: Plain = False) -> None:
    """End a membership.

    Examples:
      prime teams remove team_0123456789abcdef user_0123456789abcdef
    """
    from prime_inference.cli.admin_client import AdminClient, print_fields

    gone = AdminClient().delete(f"teams/{team}/members/{person}")
    print_fields(Terminal(plain=plain), output, gone)
