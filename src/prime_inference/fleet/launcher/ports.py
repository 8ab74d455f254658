"""Ports of loopback for children that are told one."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterable

FIRST, LAST = 20_000, 32_767
"""Below the ports that Linux gives to outgoing connections (32,768 on), so that none of those
takes a port before the child does. Dynamo 1.6.1 reads DYN_SYSTEM_PORT as a signed 16-bit number,
so it must stay below 32,768 anyway."""


class Ports:
    """Gives out ports that nobody listens on, each once. `taken` are given out already."""

    def __init__(self, taken: Iterable[int] = ()) -> None:
        self._taken = set(taken)

    def take(self) -> int:
        """Raises OSError when none is left."""
        for port in random.sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
            if port not in self._taken and _is_free(port):
                self._taken.add(port)
                return port
        raise OSError(f"no port from {FIRST} to {LAST} is free")

    def give_back(self, ports: Iterable[int]) -> None:
        """Nobody is to listen there any more."""
        self._taken.difference_update(ports)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # some of Dynamo's sockets bind to every address
        except OSError:
            return False
    return True
