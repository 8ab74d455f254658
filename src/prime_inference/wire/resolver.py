"""Addresses of hosts: a name whose resolver does not answer holds up no other.

The system's own lookup (getaddrinfo, with /etc/hosts, search domains and whatever else the
machine is set up for) blocks a thread, for ten seconds and more while a name server is silent.
So each name has one thread at a time, only while it is looked up, and none waits for another's.
Addresses are kept for a moment, and used on while nobody answers (RFC 8767, "serve stale").
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address

FRESH_SECONDS = 5.0  # as often as Envoy looks: a move of a datacenter is followed in that time
RETRY_SECONDS = 1.0  # between lookups that nobody answered
PATIENCE_SECONDS = 0.5  # for an answer, where earlier addresses are known; it takes milliseconds
STALE_SECONDS = 3600.0  # no outage of a resolver is longer; in the end another may have the address
MOST_NAMES = 4096

_NO_SUCH_NAME = frozenset(
    getattr(socket, name)
    for name in ("EAI_NONAME", "EAI_NODATA", "EAI_ADDRFAMILY")
    if hasattr(socket, name)
)
"""An answer, too: the name has no address. Everything else means that nobody answered."""

LookUp = Callable[[str], Sequence[str]]
"""The addresses of a name, in the order to try. Blocks; raises OSError, UnicodeError."""


class _Name:
    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()  # of the last answer
        self.known_at = 0.0
        self.look_again_at = 0.0
        self.unanswered = False  # by the last lookup
        self.error: OSError | UnicodeError | None = None  # of the last lookup
        self.lookup: asyncio.Future[None] | None = None  # under way
        self.turns = 0


class Resolver:
    """Looks names up, for all connections of one event loop. Times are seconds of `now`."""

    def __init__(
        self, look_up: LookUp | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up or system_lookup
        self._now = now
        self._names: dict[str, _Name] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """The addresses of a name; each call begins with another one, to spread connections.

        Waits for an answer without end where none was ever had: clocks belong to the caller,
        and to cancel a wait is no loss to others. Raises OSError, UnicodeError.
        """
        name = self._names.get(host) or self._new(host)
        if not name.addresses or self._now() >= name.look_again_at:
            await self._look(host, name)
        if not name.addresses:
            raise name.error or OSError(f"{host} has no address")
        name.turns += 1
        turn = name.turns % len(name.addresses)
        return [*name.addresses[turn:], *name.addresses[:turn]]

    def doubt(self, host: str) -> None:
        """Nobody was met at what `addresses` said: the name may have moved."""
        name = self._names.get(host)
        if name is not None:
            name.look_again_at = 0.0

    async def _look(self, host: str, name: _Name) -> None:
        """Until there is an answer, or what is known has to do."""
        lookup = name.lookup or self._start(host, name)
        if self._now() >= name.known_at + STALE_SECONDS:
            name.addresses = ()
        if not name.addresses:
            await asyncio.wait({lookup})
        elif not name.unanswered:
            await asyncio.wait({lookup}, timeout=PATIENCE_SECONDS)
            name.unanswered = name.unanswered or not lookup.done()

    def _start(self, host: str, name: _Name) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        lookup = name.lookup = loop.create_future()

        def look() -> None:
            found: Sequence[str] | OSError | UnicodeError
            try:
                found = self._look_up(host)
            except (OSError, UnicodeError) as error:
                found = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._ended, name, lookup, found)

        try:
            # not an executor's: a process that ends does not wait for a silent resolver
            threading.Thread(target=look, name="resolver", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._ended(name, lookup, OSError(str(error)))
        return lookup

    def _ended(
        self,
        name: _Name,
        lookup: asyncio.Future[None],
        found: Sequence[str] | OSError | UnicodeError,
    ) -> None:
        now = self._now()
        name.lookup = None
        name.error = found if isinstance(found, OSError | UnicodeError) else None
        name.unanswered = isinstance(found, OSError) and found.errno not in _NO_SUCH_NAME
        if isinstance(found, OSError | UnicodeError):
            name.look_again_at = now + RETRY_SECONDS
            if not name.unanswered:
                name.addresses = ()
        else:
            name.addresses, name.known_at = found, now
            name.look_again_at = now + FRESH_SECONDS
        if not lookup.done():
            lookup.set_result(None)

    def _new(self, host: str) -> _Name:
        if len(self._names) >= MOST_NAMES:  # a fleet that changed thousands of times
            self._names = {key: name for key, name in self._names.items() if name.lookup}
        name = self._names[host] = _Name()
        return name


def is_address(host: str) -> bool:
    """Whether there is nothing to look up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def system_lookup(host: str) -> list[str]:
    """What the system says, each address once. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(_text(address) for *_, address in found))


def _text(address: tuple[object, ...]) -> str:
    scope = address[3] if len(address) > 3 else 0  # of a link-local IPv6 address
    return f"{address[0]}%{scope}" if scope else f"{address[0]}"
