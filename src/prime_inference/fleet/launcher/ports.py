"""Ports of loopback for children that are told one."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Callable, Iterable, Iterator

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
            if port not in self._taken and _can_bind(port):
                self._taken.add(port)
                return port
        raise OSError(f"no port from {FIRST} to {LAST} is free")

    @contextlib.contextmanager
    def taking(self) -> Iterator[Callable[[], int]]:
        """`take`, of ports that are given back if what they are for fails."""
        taken: list[int] = []

        def take() -> int:
            taken.append(self.take())
            return taken[-1]

        try:
            yield take
        except BaseException:
            self.give_back(taken)
            raise

    def give_back(self, ports: Iterable[int]) -> None:
        """Nobody is to listen there any more."""
        self._taken.difference_update(ports)


def can_listen(port: int) -> bool:
    """Whether a child can listen there: nobody else does. Connections of one that has ended
    are in nobody's way."""
    return _can_bind(port, again=True)


def _can_bind(port: int, *, again: bool = False) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, again)
        try:
            probe.bind(("0.0.0.0", port))  # noqa: S104  # some of Dynamo's sockets bind to every address
        except OSError:
            return False
    return True
