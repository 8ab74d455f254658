"""One JSON line for each generation: who, what, how long, how many tokens; never content.

Lines are gathered and written a few times a second, so that a request waits for no disk;
a crash can lose that last moment of the log, never of the accounts.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from prime_inference.domain.generation import Generation

FLUSH_SECONDS = 0.25
FLUSH_LINES = 256
ROTATE_BYTES = 64 * 1024 * 1024  # two files of this size are kept: about half a million lines

_encoder = msgspec.json.Encoder()


class AccessLog:
    """Implements `ports.generations.GenerationSink` over a file that rotates once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def record(self, generation: Generation) -> None:
        self._lines.append(_encoder.encode(generation))
        if len(self._lines) >= FLUSH_LINES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write what is gathered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines.clear()
        try:
            self._size += os.write(self._file, data)
        except OSError:  # a full disk must not stop answers; metrics still count
            return
        if self._size > ROTATE_BYTES:
            self._rotate()

    def close(self) -> None:
        self.flush()
        os.close(self._file)

    def _rotate(self) -> None:
        os.close(self._file)
        self._path.replace(self._path.with_suffix(".1.jsonl"))
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = 0
