"""What is wrong with a trace file, and where."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

T = TypeVar("T")
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")


class TraceError(ValueError):
    """A line that is not of its form. `line` counts from 1; `field` is a path into the line."""

    def __init__(self, file: str, line: int, field: str, problem: str) -> None:
        where = f"field {field}: " if field else ""
        super().__init__(f"{file}, line {line}: {where}{problem}")
        self.file = file
        self.line = line
        self.field = field
        self.problem = problem

    @classmethod
    def decoding(cls, file: str, line: int, error: msgspec.DecodeError) -> TraceError:
        """From a decoder's error, whose text ends in the path of the field."""
        text = str(error)
        match = _PATH.search(text)
        if match is None:
            return cls(file, line, "", text)
        return cls(file, line, match["path"], text[: match.start()])


def decoded(decoder: msgspec.json.Decoder[T], file: str, line: int, data: bytes) -> T:
    """A line by its form. Raises TraceError."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise TraceError.decoding(file, line, error) from error
    except RecursionError:
        raise TraceError(file, line, "", "is nested too deeply") from None
