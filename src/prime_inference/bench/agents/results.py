"""`results.json`: every record of a run, valid JSON whenever the run is killed.

    {"format": 1, "provenance": {...}, "plan": {...}, "records": [
    {...},
    {...}
    ], "points": [...], "state": "running" | "complete" | "interrupted"}

Each record is written over the tail, with the tail again behind it, in one write: between
two writes the file is whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from prime_inference.bench.agents.plan import Plan, Point
from prime_inference.bench.agents.point import PointRun
from prime_inference.bench.agents.provenance import Provenance
from prime_inference.bench.agents.records import Record

FORMAT = 1
FILE = "results.json"
State = Literal["running", "complete", "interrupted"]


class ResultsInvalid(ValueError):
    """A file that is no results file, or not of this run."""


class Results(msgspec.Struct, kw_only=True):
    """A whole file. `points` are the finished ones; records of others are a partial result."""

    format: int
    provenance: Provenance
    plan: Plan
    records: list[Record]
    points: list[PointRun]
    state: State

    def of_point(self, number: int) -> list[Record]:
        return [record for record in self.records if record.point == number]


def read_results(path: Path) -> Results:
    """`path` is the file or its folder. Raises ResultsInvalid, OSError."""
    file = path / FILE if path.is_dir() else path
    try:
        results = msgspec.json.decode(file.read_bytes(), type=Results)
    except msgspec.DecodeError as error:
        raise ResultsInvalid(f"{file} is no results file: {error}") from error
    if results.format != FORMAT:
        raise ResultsInvalid(f"{file} has format {results.format}; this program reads {FORMAT}")
    return results


class ResultsFile:
    """A results file that is being written. Use as a context manager: `running` at its end
    becomes `interrupted`."""

    def __init__(
        self, path: Path, provenance: Provenance, plan: Plan,
        records: Sequence[Record] = (), points: Sequence[PointRun] = (),
    ) -> None:  # fmt: skip
        self.points = list(points)
        self._path = path
        self._encoder = msgspec.json.Encoder()
        self._state: State = "running"
        head = self._encoder.encode({"format": FORMAT, "provenance": provenance, "plan": plan})
        lines = [self._encoder.encode(record) for record in records]
        self._begun = bool(lines)
        fresh = path.with_suffix(".part")
        # unbuffered: a write that fails has failed there and then, and closing writes nothing
        self._file = fresh.open("wb", buffering=0)
        self._end = 0
        self._tail = b""
        try:
            begun = (b"\n" + b",\n".join(lines)) if lines else b""
            self._write(head[:-1] + b', "records": [' + begun)
        except OSError:
            self._file.close()
            fresh.unlink()
            raise
        fresh.replace(path)  # from here on the old file, if any, is gone

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._state == "running":
                self._state = "interrupted"
                self._write(b"")
        finally:
            self._file.close()

    def add(self, record: Record) -> None:
        separator = b",\n" if self._begun else b"\n"
        self._write(separator + self._encoder.encode(record))
        self._begun = True

    def finish_point(self, run: PointRun) -> None:
        self.points.append(run)
        try:
            self._write(b"")
        except OSError:
            self.points.pop()
            raise

    def complete(self) -> None:
        self._state = "complete"
        self._write(b"")

    def _write(self, more: bytes) -> None:
        # states are padded to one length: to say `interrupted` needs no room on a full disk
        state = f'"{self._state}"'.ljust(len('"interrupted"')).encode()
        tail = b'\n], "points": %b, "state": %b}\n' % (self._encoder.encode(self.points), state)
        try:
            self._put(more + tail)
        except OSError as error:
            self._put(self._tail)  # into the room that it had
            raise OSError(error.errno, error.strerror, str(self._path)) from error
        self._end += len(more)
        self._tail = tail

    def _put(self, data: bytes) -> None:
        """Make `data` what follows `_end`. A disk that fills up takes a part of it first."""
        self._file.seek(self._end)
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) :]
        self._file.truncate()


def differing(one: Plan, other: Plan) -> list[str]:
    """What two plans do not share, besides their points: names of the plan or of its options."""
    names = [n for n in one.__struct_fields__ if n not in ("points", "options")]
    found = [n for n in names if getattr(one, n) != getattr(other, n)]
    return found + [
        f"options.{n}" for n in one.options.__struct_fields__
        if getattr(one.options, n) != getattr(other.options, n)
    ]  # fmt: skip


def resumed(
    path: Path, plan: Plan, now: Provenance
) -> tuple[list[Record], list[PointRun], Provenance]:
    """What a run of `plan` need not measure again, and the provenance of it all.

    Raises ResultsInvalid, OSError.
    """
    results = read_results(path)
    if names := differing(plan, results.plan):
        raise ResultsInvalid(f"{path} was of another run: {', '.join(names)} differ")
    if (reason := now.other_server(results.provenance)) is not None:
        raise ResultsInvalid(f"{path} was of another server: {reason}")
    wanted: dict[Point, int] = {point: number for number, point in enumerate(plan.points)}
    kept = [run for run in results.points if run.point in wanted]
    numbers = {run.number: wanted[run.point] for run in kept}
    records = [
        msgspec.structs.replace(record, point=numbers[record.point])
        for record in results.records if record.point in numbers
    ]  # fmt: skip
    points = [msgspec.structs.replace(run, number=numbers[run.number]) for run in kept]
    return records, points, now.after(results.provenance)
