"""What every command's options and help have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from prime_inference.cli.failures import WrongUsage

PLAIN_KEY = "prime.plain"
JSON_KEY = "prime.json"


def one_of(option: str, *choices: str) -> Callable[[str], str]:
    """A check that an option's value is one of `choices`. Raises WrongUsage.

    The framework's own choice type would exit with 2; scripts written for the `prime`
    command expect 1.
    """

    def check(value: str) -> str:
        if value not in choices:
            raise WrongUsage(f"{option} must be one of: {', '.join(choices)}; not {value!r}.")
        return value

    return check


Plain = Annotated[
    bool, typer.Option("--plain", help="Terse text without colours, boxes or wrapping.")
]
TableOrJson = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="table|json",
        help="How to print.",
        callback=one_of("--output", "table", "json"),
    ),
]
TextOrJson = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="text|json",
        help="How to print.",
        callback=one_of("--output", "text", "json"),
    ),
]
NewModel = Annotated[
    bool, typer.Option("--new-model", help="The model is to come: its name is not looked up.")
]

ERROR_SHAPE = (
    "Errors, on stderr: {error: {message, type, param, code, hint?, status?, metadata?}};"
    " exit code 1 (2: the command line is wrong; 130: Ctrl-C)."
)


def json_help(*shapes: str) -> str:
    """An epilog that gives the shape of a command's `--output json`."""
    text = "\n\n".join(["JSON output (--output json):", *shapes, ERROR_SHAPE])
    return text.replace("[", r"\[")  # a JSON list is no markup; plain help takes it back


def wants_json(args: list[str]) -> bool:
    """Whether a command line asks for JSON; it may be one that does not parse."""
    given = _before_dashes(args)
    if "-ojson" in given or "--output=json" in given:
        return True
    return any(pair in (("-o", "json"), ("--output", "json")) for pair in pairwise(given))


def wants_plain(args: list[str]) -> bool:
    """Whether a command line asks for plain text; it may be one that does not parse."""
    return "--plain" in _before_dashes(args)


def _before_dashes(args: list[str]) -> list[str]:
    return args[: args.index("--")] if "--" in args else args


class _PlainHelp:
    """Help as unstyled text, lines kept as they are written, when `--plain` is given."""

    rich_markup_mode: Any
    help: str | None
    epilog: str | None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if ctx.meta.get(PLAIN_KEY):
            self.rich_markup_mode = None
        super().format_help(ctx, formatter)  # type: ignore[misc]  # of the class mixed into

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        _write_verbatim(formatter, self.help)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        formatter.write_paragraph()
        _write_verbatim(formatter, self.epilog)


def _write_verbatim(formatter: Any, text: str | None) -> None:
    for line in inspect.cleandoc(text or "").replace(r"\[", "[").splitlines():
        formatter.write(f"  {line}\n" if line else "\n")


class Command(_PlainHelp, TyperCommand):
    """A command of `prime`."""


class Group(_PlainHelp, TyperGroup):
    """A group of commands of `prime`."""
