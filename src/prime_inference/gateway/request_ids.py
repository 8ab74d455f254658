"""Request ids: 24 hexadecimal digits, unguessable, unique across replicas."""

from __future__ import annotations

import os
from collections.abc import Iterator

ID_BYTES = 12  # 96 bits: a billion ids a day for a century collide with probability 1e-2
BATCH = 256  # one system call for this many ids


def request_ids() -> Iterator[str]:
    """Ids without end."""
    while True:
        digits = os.urandom(ID_BYTES * BATCH).hex()
        for start in range(0, len(digits), ID_BYTES * 2):
            yield digits[start : start + ID_BYTES * 2]
