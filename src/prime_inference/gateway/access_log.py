"""One JSON line for each generation: who, what, how long, how many tokens; never content."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from prime_inference.domain.generation import Generation

ROTATE_BYTES = 64 * 1024 * 1024  # two files of this size are kept: about 300,000 lines

_encoder = msgspec.json.Encoder()


class AccessLog:
    """Implements `ports.generations.GenerationSink` over a file that rotates once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()

    def record(self, generations: Sequence[Generation]) -> None:
        try:
            self._size += os.write(self._file, _encoder.encode_lines(generations))
        except OSError:  # a full disk must not stop answers; metrics still count
            return
        if self._size > ROTATE_BYTES:
            os.close(self._file)
            self._path.replace(self._path.with_suffix(".1.jsonl"))
            self._open()

    def close(self) -> None:
        os.close(self._file)

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size
