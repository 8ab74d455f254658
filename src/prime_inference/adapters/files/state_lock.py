"""One server for each state folder: a lock that the kernel takes back when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from prime_inference.adapters.files.key_store import StateFolderError, unusable

LOCK_FILE = "lock"
MAX_PID_BYTES = 20


@contextlib.contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Hold the folder, which is made if need be; raises StateFolderError if another server does.

    The file stays behind with the last holder's process id in it and means nothing then: the
    lock is flock's, which ends with the process however that ends.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise unusable(folder, error) from error
    try:
        _lock(file, folder)
        yield
    finally:
        os.close(file)


def _lock(file: int, folder: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(file, MAX_PID_BYTES).decode(errors="replace").strip()
        named = f" (process {holder})" if holder else ""  # it has not written it yet
        raise StateFolderError(
            f"Another server{named} uses the state folder {folder}. Stop it, or choose another"
            " folder with --state-dir."
        ) from None
    except OSError as error:  # a file system without locks
        raise unusable(folder, error) from error
    os.ftruncate(file, 0)
    os.write(file, f"{os.getpid()}\n".encode())
