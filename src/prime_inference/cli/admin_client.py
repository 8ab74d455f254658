"""The admin API of a gateway, for the commands of its operator."""

from __future__ import annotations

import contextlib
import getpass
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from prime_inference.cli.failures import (
    AnswerMalformed,
    NoApiKey,
    NothingAnswers,
    ServerRefused,
    WrongUsage,
)
from prime_inference.cli.folders import state_folder
from prime_inference.cli.replies import error_object
from prime_inference.cli.terminal import Column, Terminal

TIMEOUT_S = 120.0  # a statement may wait for a migration or a backup
VERIFY_S = 3_600.0  # 10 million events took three and a half minutes
Row = dict[str, Any]


class AdminClient:
    """PRIME_CONTROL_URL and PRIME_ADMIN_KEY, else the server that runs on this machine.

    Raises NoApiKey, NothingAnswers, ServerRefused, AnswerMalformed.
    """

    def __init__(self) -> None:
        folder = state_folder(os.environ, Path.home())
        self._url = os.environ.get("PRIME_CONTROL_URL") or _control_url(folder)
        self._key = os.environ.get("PRIME_ADMIN_KEY") or _admin_key(folder)

    def get(self, path: str, **query: object) -> Any:
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._ask("GET", path, params=given)

    def post(self, path: str, **body: object) -> Any:
        """Send what is not None."""
        return self._ask("POST", path, json=_given(body))

    def put(self, path: str, **body: object) -> Any:
        return self._ask("PUT", path, json=_given(body))

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self._key}", "x-prime-actor": _person()}
        try:
            response = httpx.request(
                method,
                f"{self._url}/admin/v1/{path}",
                headers=headers,
                timeout=VERIFY_S if path == "ledger/verify" else TIMEOUT_S,
                trust_env=False,
                **options,
            )
        except httpx.HTTPError as error:
            raise NothingAnswers(
                f"The control listener at {self._url} does not answer.",
                hint="Start a server with `--database sqlite`, or set PRIME_CONTROL_URL.",
            ) from error
        try:
            document = msgspec.json.decode(response.content)
        except ValueError as error:
            raise AnswerMalformed("The control listener's answer is no JSON.") from error
        if not response.is_success:
            raise _refusal(response, document)
        return document


def print_rows(
    terminal: Terminal,
    output: str,
    document: object,
    title: str,
    rows: Sequence[Row],
    columns: Sequence[str],
) -> None:
    """The document as JSON, or the rows' named fields as a table."""
    if output == "json":
        terminal.json(document)
    elif not rows:
        terminal.note(f"No {title.lower()}.")
    else:
        cells = [[_text(row.get(name)) for name in columns] for row in rows]
        terminal.table(title, [Column(name) for name in columns], cells)


def print_fields(terminal: Terminal, output: str, document: Row) -> None:
    """The document as JSON, or one field a line."""
    if output == "json":
        terminal.json(document)
        return
    width = max(map(len, document), default=0)
    for name, value in document.items():
        terminal.line(f"{name.ljust(width)}  {_text(value) or '-'}")


def _refusal(response: httpx.Response, document: Any) -> ServerRefused:
    error = error_object(document.get("error") if isinstance(document, dict) else None)
    hint = None
    if response.status_code == httpx.codes.NOT_FOUND and "/admin" in error.message:
        hint = "The server was started without --database."
    return ServerRefused(
        error.message,
        status=response.status_code,
        server_code=error.code,
        body=error.body,
        hint=hint,
    )


def _given(body: Row) -> Row:
    for name, value in body.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise WrongUsage(f"{name} is a number, not {value}.")
    return {name: value for name, value in body.items() if value is not None}


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


def _person() -> str:
    with contextlib.suppress(OSError, KeyError):  # an account without a name
        name = getpass.getuser()
        return name if name.isascii() and " " not in name else "unnamed"
    return "unnamed"


def _control_url(folder: Path) -> str:
    try:
        endpoint = msgspec.json.decode((folder / "endpoint.json").read_bytes())
        return str(endpoint["control_url"])
    except (OSError, ValueError, KeyError) as error:
        raise NothingAnswers(
            "No server runs on this machine.",
            hint="Start one with `prime inference serve --database sqlite`, or set"
            " PRIME_CONTROL_URL and PRIME_ADMIN_KEY.",
        ) from error


def _admin_key(folder: Path) -> str:
    try:
        return (folder / "admin_key").read_text().strip()
    except OSError as error:
        raise NoApiKey(
            "There is no admin key.",
            hint="The server makes it when it is started with --database; or set PRIME_ADMIN_KEY.",
        ) from error
