"""Where a command writes: what was asked for to stdout, everything else to stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from prime_inference.cli.failures import CommandFailed

if TYPE_CHECKING:
    from rich.console import Console


def _visible_controls() -> dict[int, str]:
    """Control characters to pictures of themselves; line feed and tab stay, CR goes."""
    table = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
    table |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")
    table[ord("\r")] = ""
    del table[ord("\n")], table[ord("\t")]
    return table


VISIBLE_CONTROLS = _visible_controls()


def printable(text: str) -> str:
    """`text` without the power to move the cursor, recolour, or write to the clipboard."""
    return text.translate(VISIBLE_CONTROLS)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    title: str
    align: Literal["left", "right"] = "left"
    style: str = ""


class Terminal:
    """The two streams of one command.

    `plain` is for machines that read text: no colour, no boxes, no spinner, no wrapping.
    Text that came over the wire is made harmless before it reaches a terminal, and left
    as it is for a pipe.
    """

    def __init__(self, *, plain: bool = False) -> None:
        self.plain = plain
        self._line_open = False

    # -- stdout

    @property
    def interactive(self) -> bool:
        """Whether a person types and reads here."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def json(self, data: object) -> None:
        """Write one JSON document."""
        _write(sys.stdout, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def line(self, text: str = "") -> None:
        """Write a line."""
        _write(sys.stdout, f"{_for_stream(sys.stdout, text)}\n")

    def answer(self, text: str) -> None:
        """Write a piece of an answer, at once."""
        if text:
            _write(sys.stdout, _for_stream(sys.stdout, text))
            self._line_open = not text.endswith("\n")

    def end_answer(self) -> None:
        """End the answer's last line, if it is open."""
        if self._line_open:
            _write(sys.stdout, "\n")
            self._line_open = False

    def table(self, title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Write a table; cells are plain text."""
        if self.plain or not sys.stdout.isatty():
            self._plain_table(columns, rows)
            return
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title)
        for column in columns:
            table.add_column(
                column.title, justify=column.align, style=column.style, overflow="fold"
            )
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        Console().print(table)

    def _plain_table(self, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
        """Columns padded to their widest cell, whatever the window's width."""
        cells = [[column.title for column in columns]]
        cells += [[printable(cell).replace("\n", " ") or "-" for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for row in cells:
            padded = [
                cell.rjust(width) if column.align == "right" else cell.ljust(width)
                for cell, width, column in zip(row, widths, columns, strict=True)
            ]
            self.line("  ".join(padded).rstrip())

    # -- stderr

    def note(self, text: str) -> None:
        """Write a line that is not part of the answer."""
        self._aside(text, style="dim")

    def success(self, text: str) -> None:
        """Say what was done."""
        self._aside(text, style="green")

    def thought(self, text: str) -> None:
        """Write a piece of a model's reasoning, at once."""
        _write(sys.stderr, _for_stream(sys.stderr, text))

    def error(self, failure: CommandFailed) -> None:
        """Write why the command failed, and what to do about it."""
        self._aside(f"Error: {failure.message}", style="red")
        if failure.hint:
            self._aside(failure.hint, style="")

    @staticmethod
    def json_note(data: object) -> None:
        """Write one JSON document on one line of stderr."""
        _write(sys.stderr, json.dumps(data, ensure_ascii=False) + "\n")

    @contextlib.contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """A spinner on a terminal while something is waited for."""
        if self.plain or not sys.stderr.isatty():
            yield
            return
        from rich.markup import escape

        with self._console().status(escape(printable(text)), spinner="dots"):
            yield

    def _aside(self, text: str, style: str) -> None:
        if self.plain or not sys.stderr.isatty():
            _write(sys.stderr, f"{text}\n")
            return
        from rich.text import Text

        self._console().print(Text(printable(text), style=style), soft_wrap=True)

    @staticmethod
    def _console() -> Console:
        from rich.console import Console

        return Console(stderr=True)


def _for_stream(stream: Any, text: str) -> str:
    return printable(text) if stream.isatty() else text


def _write(stream: Any, text: str) -> None:
    """Write and flush; what the stream's encoding lacks is replaced rather than an error."""
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))
    stream.flush()
