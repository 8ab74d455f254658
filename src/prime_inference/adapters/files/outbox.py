"""The outbox of one replica: a journal in a folder of its own.

One event is one line, CRC-32 and JSON, and one append is one `write`: the operating system
has it then, whatever becomes of the process. The shipper's thread sees to it that the disk
has it, too. Files are named by the place of their first byte; a file that the ledger has
whole is removed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from prime_inference.domain.errors import CannotStart
from prime_inference.domain.usage_event import UsageEvent
from prime_inference.ports.outbox import OutboxUnavailable

log = logging.getLogger(__name__)

FILE_BYTES = 16 * 1024 * 1024  # about 60,000 events
READ_BYTES = 256 * 1024  # a batch of the shipper's, and some more
DIGITS = 20  # of a place, so that names sort like numbers
CRC_DIGITS = 8

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(UsageEvent).decode


class FileOutbox:
    """Implements `ports.outbox.Outbox`. Raises CannotStart if another process has it open."""

    def __init__(self, folder: Path, file_bytes: int = FILE_BYTES) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _opened(folder / "lock", os.O_RDWR)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise CannotStart(
                f"Another gateway writes to {folder}. Give each its own --state-dir."
            ) from error
        self._cursor_file = _opened(folder / "cursor", os.O_RDWR)
        self._starts = sorted(int(path.stem) for path in folder.glob("*.log")) or [0]
        self._file = self._open_file(self._starts[-1])
        self._end = self._starts[-1] + _repaired(self._file)
        self._cursor = max(self._starts[0], min(self._end, _number(self._cursor_file)))
        self._waiting = sum(_whole(line) for _, line in self._lines(self._cursor, self._end))
        self._served: list[int] = []  # places of the last look

    def append(self, events: Sequence[UsageEvent]) -> None:
        data = b"".join([_line(event) for event in events])
        try:
            written = os.write(self._file, data)
        except OSError as error:
            raise OutboxUnavailable(str(error)) from error
        if written != len(data):  # the disk is full: take back what went in
            os.ftruncate(self._file, self._end - self._starts[-1])
            raise OutboxUnavailable("the disk is full")
        self._end += written
        self._waiting += len(events)
        if self._end - self._starts[-1] >= self._file_bytes:
            self._next_file()

    def oldest(self, most: int) -> Sequence[tuple[int, UsageEvent]]:
        found = []
        for place, line in self._lines(self._cursor, self._end):
            if not _whole(line):  # its append never returned, so nobody counted on it
                log.warning("a torn line of %d bytes in the outbox is passed over", len(line))
                continue
            found.append((place, _decode(line[CRC_DIGITS + 1 :])))
            if len(found) == most:
                break
        self._served = [place for place, _ in found]
        return found

    def sync(self) -> None:
        os.fdatasync(self._file)

    def delete(self, upto: int) -> None:
        self._waiting -= bisect_right(self._served, upto)
        self._cursor = upto
        os.pwrite(self._cursor_file, b"%020d" % upto, 0)
        while len(self._starts) > 1 and self._starts[1] <= upto:
            self._path(self._starts[0]).unlink()
            del self._starts[0]

    def count(self) -> int:
        return self._waiting

    def close(self) -> None:
        for file in (self._file, self._cursor_file, self._lock):
            os.close(file)

    def _next_file(self) -> None:
        """Go on in a new file; what the disk has not of the old one it gets now."""
        before = self._file
        self._file = self._open_file(self._end)
        self._starts.append(self._end)
        os.close(before)

    def _open_file(self, start: int) -> int:
        return _opened(self._path(start), os.O_RDWR | os.O_APPEND)

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:0{DIGITS}d}.log"

    def _lines(self, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Whole lines between two places, each with the place behind it."""
        starts = list(self._starts)
        for start, after in zip(starts, [*starts[1:], end], strict=True):
            if begin < min(after, end):
                yield from _lines_of(self._path(start), start, begin, min(after, end))
                begin = after


def _lines_of(path: Path, start: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    rest = b""
    with path.open("rb") as file:
        file.seek(begin - start)
        while begin < end and (data := file.read(min(READ_BYTES, end - begin))):
            begin += len(data)
            *lines, rest = (rest + data).split(b"\n")
            place = begin - len(rest) - sum(len(line) + 1 for line in lines)
            for line in lines:
                place += len(line) + 1
                yield place, line


def _line(event: UsageEvent) -> bytes:
    text = _encode(event)
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _whole(line: bytes) -> bool:
    return line[:CRC_DIGITS] == b"%08x" % zlib.crc32(line[CRC_DIGITS + 1 :])


def _repaired(file: int) -> int:
    """The size of a file whose last line may have been torn when its writer died."""
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        size += os.write(file, b"\n")
    return size


def _number(file: int) -> int:
    text = os.pread(file, DIGITS, 0)
    return int(text) if text.isdigit() else 0  # begin anew: the ledger knows what it has


def _opened(path: Path, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
