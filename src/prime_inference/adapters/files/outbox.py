"""The outbox of one replica: a journal in a folder of its own.

One event is one line, CRC-32 and JSON, and one append is one `write`: the operating system
has it then, whatever becomes of the process. The shipper, which may be another process, sees
to it that the disk has it, too. Files are named by the place of their first byte; a file that
the ledger has whole is removed. The cursor is the place up to which it has everything.

A cursor that is in none of the files, or not behind a line, tells that a file was cut or an older
copy put back, or that it is broken itself. What is there is shipped again then, all of it: the
ledger knows what it has.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from prime_inference.domain.errors import CannotStart
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.outbox import OutboxUnavailable

log = logging.getLogger(__name__)

FILE_BYTES = 16 * 1024 * 1024  # about 60,000 events
READ_BYTES = 256 * 1024  # a batch of the shipper's, and some more
DIGITS = 20  # of a place, so that names sort like numbers
OURS = re.compile(r"[0-9]{20}")  # names of files
BEYOND = 2**62  # no outbox has written so many bytes
CRC_DIGITS = 8
SET_ASIDE = "set_aside.jsonl"  # beside the journal: events that no ledger takes

_Files = list[tuple[int, int]]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageEvent).decode


class FileOutbox:
    """The gateway's end. Implements `ports.outbox.Outbox`.

    Raises CannotStart if another process has it open.
    """

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _locked(
            folder / "lock", f"Another gateway writes to {folder}. Give each its own --state-dir."
        )
        self._cursor = _opened(folder / "cursor")
        self._confirmed, self._start, self.rewound = self._resumed()
        self._file = self._open_file()
        size = os.fstat(self._file).st_size
        self._end = self._start + size
        self._torn = self._lacks_its_last_end(size)

    def append(self, events: Sequence[UsageEvent]) -> None:
        data = b"".join([_line(event) for event in events])
        if self._torn:  # end a line that its writer could not
            data = b"\n" + data
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise OutboxUnavailable(str(error)) from error
        self._end += written
        self._torn = written != len(data)
        if self._torn:
            raise OutboxUnavailable("the disk is full")
        if self._end - self._start >= self._file_bytes:
            os.close(self._file)
            self._start = self._end
            self._file = self._open_file()

    def places(self) -> tuple[int, int]:
        size = os.fstat(self._file).st_size
        if self._start + size < self._end:  # somebody cut it
            self._torn = self._lacks_its_last_end(size)
        self._end = self._start + size
        before, self._confirmed = self._confirmed, _place(self._cursor) or 0
        self.rewound += self._confirmed < before
        return self._confirmed, self._end

    def waiting(self) -> int:
        confirmed, end = self.places()
        return max(0, end - confirmed)

    def set_aside(self) -> int:
        return len(_aside(self._folder))

    def close(self) -> None:
        for file in (self._file, self._cursor, self._lock):
            os.close(file)

    def _resumed(self) -> tuple[int, int, int]:
        """How far the ledger has what is there; where the last file begins; 1 if it was cut.

        Places never begin anew: what was removed is before the cursor. Nor are they given to
        events that a wrong cursor would pass over: those come behind it, in a file of their own.
        """
        cursor, files = _place(self._cursor), _files(self._folder)
        if not files:
            return cursor or 0, cursor or 0, 0
        (first, _), (last, size) = files[0], files[-1]
        if cursor is not None and _is_behind_a_line(self._folder, files, cursor):
            return cursor, last, 0
        if cursor is None or cursor < first:
            return first, last, 1
        return first, max(cursor, last + size) + 1, 1

    def _lacks_its_last_end(self, size: int) -> bool:
        return bool(size) and os.pread(self._file, 1, size - 1) != b"\n"

    def _open_file(self) -> int:
        return _opened(_path(self._folder, self._start), os.O_APPEND)


class FileOutboxReader:
    """The shipper's end. Implements `ports.outbox.OutboxReader`.

    Raises CannotStart if another shipper is at it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = _locked(folder / "shipper.lock", f"Another shipper reads {folder}.")
        self._cursor_file = _opened(folder / "cursor")
        self._cursor = _place(self._cursor_file)
        self._kept = _aside(folder)

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        found: list[tuple[int, UsageEvent]] = []
        files = _files(self._folder)
        if not files:
            return found
        cursor = self._found_cursor(files)
        for place, line in self._lines(files, cursor):
            if not _whole(line):  # its append never returned, so nobody counted on it
                log.warning("a torn line of %d bytes in the outbox is passed over", len(line))
                continue
            try:
                found.append((place, _decode(line[CRC_DIGITS + 1 :])))
            except (msgspec.MsgspecError, RecursionError):  # no release that we know wrote it
                self._keep(line[CRC_DIGITS + 1 :])
                continue
            if len(found) == most:
                break
        if not found and cursor < files[-1][0]:  # only the last file grows
            self.delete(files[-1][0])
        return found

    def set_aside(self, event: UsageEvent) -> None:
        self._keep(_encode(event))

    def _keep(self, text: bytes) -> None:
        if text in self._kept:
            return
        log.error("a usage event that cannot be applied is set aside in %s", SET_ASIDE)
        file = _opened(self._folder / SET_ASIDE, os.O_APPEND)
        try:
            os.write(file, text + b"\n")
            os.fdatasync(file)
        finally:
            os.close(file)
        self._kept.add(text)

    def sync(self) -> None:
        for start in _starts(self._folder):
            file = os.open(_path(self._folder, start), os.O_RDONLY)
            try:
                os.fdatasync(file)
            finally:
                os.close(file)

    def delete(self, upto: int) -> None:
        self._move(upto)
        starts = _starts(self._folder)
        for start, after in pairwise(starts):
            if after <= upto:
                _path(self._folder, start).unlink()

    def close(self) -> None:
        os.close(self._cursor_file)
        os.close(self._lock)

    def _found_cursor(self, files: _Files) -> int:
        """Where to ship from: the cursor, or the first of the files if it is not right."""
        cursor = self._cursor
        if cursor is None or not _is_behind_a_line(self._folder, files, cursor):
            log.error(
                "the outbox is not as it was left (%s, files %s): all of it is shipped again, and"
                " what is missing is lost",
                "no cursor" if cursor is None else f"the cursor is {cursor}",
                ", ".join(f"{start} to {start + size}" for start, size in files),
            )
            cursor = files[0][0]
            self._move(cursor)
        return cursor

    def _move(self, cursor: int) -> None:
        self._cursor = cursor
        os.pwrite(self._cursor_file, b"%0*d" % (DIGITS, cursor), 0)

    def _lines(self, files: _Files, cursor: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines behind the cursor, each with the place behind it."""
        for start, size in files:
            if start + size > cursor:
                yield from _lines_of(_path(self._folder, start), start, max(start, cursor))


def _lines_of(path: Path, start: int, begin: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    place = begin
    with path.open("rb") as file:
        file.seek(begin - start)
        while data := file.read(READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                place += len(line) + 1
                yield place, line


def _line(event: UsageEvent) -> bytes:
    text = _encode(event)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _whole(line: bytes) -> bool:
    return line[:CRC_DIGITS] == b"%08x" % zlib.crc32(line[CRC_DIGITS + 1 :])


def _starts(folder: Path) -> list[int]:
    """The places of our files; whatever else is there is none of ours."""
    return sorted(int(path.stem) for path in folder.glob("*.log") if OURS.fullmatch(path.stem))


def _files(folder: Path) -> _Files:
    """Where each begins, and its size."""
    return [(start, _path(folder, start).stat().st_size) for start in _starts(folder)]


def _is_behind_a_line(folder: Path, files: _Files, place: int) -> bool:
    """Whether a file begins there, or has a whole line before that place."""
    for start, size in files:
        if place == start:
            return True
        if start < place <= start + size:
            with _path(folder, start).open("rb") as file:
                file.seek(place - start - 1)
                if file.read(1) == b"\n":
                    return True
    return False


def _aside(folder: Path) -> set[bytes]:
    """The events that were set aside; one twice, if its shipper died in between."""
    path = folder / SET_ASIDE
    return set(path.read_bytes().splitlines()) if path.exists() else set()


def _path(folder: Path, start: int) -> Path:
    return folder / f"{start:0{DIGITS}d}.log"


def _place(file: int) -> int | None:
    """What a cursor says: 0 where nothing was written yet, None where it is no place."""
    text = os.pread(file, DIGITS, 0)
    if not text:
        return 0
    return int(text) if text.isdigit() and int(text) < BEYOND else None


def _locked(path: Path, taken: str) -> int:
    file = _opened(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(file)
        raise CannotStart(taken) from error
    return file


def _opened(path: Path, flags: int = 0) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
