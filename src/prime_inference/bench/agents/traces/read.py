"""From a trace file to a workload."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from prime_inference.bench.agents.traces import mooncake, multi_turn, weka
from prime_inference.bench.agents.traces.errors import TraceError, decoded
from prime_inference.bench.agents.workload import Workload

_first = msgspec.json.Decoder(dict[str, msgspec.Raw])
FORMS = ("weka", "mooncake", "multi-turn")


def read_trace(path: Path, form: str | None = None) -> Workload:
    """Read a whole file; `form` None recognises it by its first line.

    Raises TraceError, OSError.
    """
    data = path.read_bytes()
    lines = _lines(data)
    name = path.name
    if not lines:
        raise TraceError(name, 1, "", "the file is empty")
    form = form or _recognise(name, *lines[0])
    if form == "mooncake":
        sessions = mooncake.read_lines(name, lines)
    elif form == "weka":
        read = [weka.read_line(name, number, line) for number, line in lines]
        sessions = [session for session in read if session is not None]
    else:
        sessions = [multi_turn.read_line(name, number, line) for number, line in lines]
    return Workload(
        name=name,
        form=form,
        sessions=tuple(sessions),
        sha256=hashlib.sha256(data).hexdigest(),
        scope="workload" if form == "mooncake" else "session",
    )


def _lines(data: bytes) -> list[tuple[int, bytes]]:
    """Lines with their numbers; one JSON object that is laid out over lines counts as one."""
    if data.lstrip().startswith(b"{\n") or data.lstrip().startswith(b"{\r\n"):
        return [(1, data)]
    numbered = enumerate(data.split(b"\n"), start=1)
    return [(number, line) for number, line in numbered if line.strip()]


def _recognise(file: str, number: int, line: bytes) -> str:
    first = decoded(_first, file, number, line)
    if "requests" in first and "block_size" in first:
        return "weka"
    if "turns" in first:
        return "multi-turn"
    if first.keys() & {"input_length", "text_input", "messages"}:
        return "mooncake"
    keys = ", ".join(sorted(first)) or "none"
    raise TraceError(
        file, number, "", f"none of {', '.join(FORMS)} by its fields ({keys}); say which it is"
    )
