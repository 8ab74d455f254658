"""Names of upstreams: one whose resolver is silent holds up no other, and is used on."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from prime_inference.domain.errors import NoConnection, UpstreamTimeout
from prime_inference.wire import resolver as module
from prime_inference.wire.http_client import HttpPool, Origin
from prime_inference.wire.resolver import (
    FRESH_SECONDS,
    STALE_SECONDS,
    Resolver,
    is_address,
    system_lookup,
)
from tests.wire.peer import PATIENCE, eventually
from tests.wire.upstream import StartUpstream, serve_forever

NO_SUCH_NAME = socket.gaierror(socket.EAI_NONAME, "no such name")
NO_ANSWER = socket.gaierror(socket.EAI_AGAIN, "no answer")


class Names:
    """A resolver of the system, and the time."""

    def __init__(self) -> None:
        self.answers: dict[str, list[str] | OSError] = {}
        self.asked: list[str] = []
        self.time = 1000.0
        self._silent: dict[str, threading.Event] = {}
        self.resolver = Resolver(self._look_up, lambda: self.time)

    def silence(self, host: str) -> Callable[[], None]:
        """Answer no more, until what is returned is called."""
        event = self._silent[host] = threading.Event()
        return event.set

    def _look_up(self, host: str) -> list[str]:
        self.asked.append(host)
        if host in self._silent:
            self._silent[host].wait()
        answer = self.answers[host]
        if isinstance(answer, OSError):
            raise answer
        return answer

    async def ask(self, host: str) -> list[str]:
        async with asyncio.timeout(PATIENCE):
            return sorted(await self.resolver.addresses(host))

    def release(self) -> None:
        for event in self._silent.values():
            event.set()


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    names.answers["east"] = ["10.0.0.1"]
    names.answers["west"] = ["10.1.0.1"]
    yield names
    names.release()


async def test_a_hundred_waits_for_one_name_hold_up_no_other(names: Names):
    names.silence("west")
    waits = [asyncio.ensure_future(names.resolver.addresses("west")) for _ in range(100)]
    for _ in range(20):
        names.time += FRESH_SECONDS
        assert await names.ask("east") == ["10.0.0.1"]
    assert names.asked.count("west") == 1  # one thread, however many wait
    assert not any(wait.done() for wait in waits)
    names.release()
    assert await asyncio.gather(*waits) == [["10.1.0.1"]] * 100


async def test_a_wait_that_is_given_up_takes_no_answer_from_others(names: Names):
    names.silence("west")
    first, second = (asyncio.ensure_future(names.resolver.addresses("west")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    names.release()
    assert await second == ["10.1.0.1"]


async def test_an_answer_is_kept_for_a_moment_and_then_looked_up_again(names: Names):
    for _ in range(3):
        assert await names.ask("east") == ["10.0.0.1"]
    assert names.asked == ["east"]
    names.answers["east"] = ["10.0.0.2"]
    names.time += FRESH_SECONDS
    assert await names.ask("east") == ["10.0.0.2"]


async def test_a_name_in_doubt_is_looked_up_at_once(names: Names):
    await names.ask("east")
    names.answers["east"] = ["10.0.0.2"]
    names.resolver.doubt("east")
    assert await names.ask("east") == ["10.0.0.2"]


async def test_the_last_addresses_serve_while_nobody_answers(
    names: Names, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
    await names.ask("west")
    names.silence("west")
    names.time += FRESH_SECONDS
    assert await names.ask("west") == ["10.1.0.1"]
    monkeypatch.setattr(module, "PATIENCE_SECONDS", PATIENCE * 2)  # who comes later does not wait
    assert await names.ask("west") == ["10.1.0.1"]
    names.answers["west"] = NO_ANSWER  # a resolver that says that it knows nothing is no better
    names.release()
    await eventually(lambda: names.resolver._names["west"].lookup is None)
    for _ in range(3):
        names.time += FRESH_SECONDS
        assert await names.ask("west") == ["10.1.0.1"]
    await eventually(lambda: names.resolver._names["west"].lookup is None)
    names.answers["west"] = ["10.1.0.2"]
    names.time += FRESH_SECONDS
    await names.ask("west")
    await eventually(lambda: names.resolver._names["west"].lookup is None)
    assert await names.ask("west") == ["10.1.0.2"]


async def test_no_address_is_used_for_ever(names: Names):
    await names.ask("west")
    names.answers["west"] = NO_ANSWER
    names.time += STALE_SECONDS
    with pytest.raises(socket.gaierror):
        await names.ask("west")


async def test_a_name_that_is_gone_is_an_answer(names: Names):
    await names.ask("west")
    names.answers["west"] = NO_SUCH_NAME
    names.time += FRESH_SECONDS
    with pytest.raises(socket.gaierror):
        await names.ask("west")


async def test_connections_are_spread_over_the_addresses_of_a_name(names: Names):
    names.answers["east"] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    first = [(await names.resolver.addresses("east"))[0] for _ in range(6)]
    assert sorted(first) == sorted(["10.0.0.1", "10.0.0.2", "10.0.0.3"] * 2)


async def test_without_threads_nobody_waits(names: Names, monkeypatch: pytest.MonkeyPatch):
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="thread"):
        await names.ask("east")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%2"])
def test_an_address_is_not_looked_up(host: str):
    assert is_address(host)


def test_the_system_knows_its_own_hosts_file():
    assert "127.0.0.1" in system_lookup("localhost")
    assert not is_address("localhost")


# -- in connections


async def test_the_connect_clock_has_the_wait_for_a_name(names: Names):
    names.silence("west")
    pool = HttpPool(Origin("west", 1, ""), resolver=names.resolver)
    with pytest.raises(UpstreamTimeout) as caught:
        await pool.fetch("GET", "/", b"", connect_seconds=0.05)
    assert caught.value.clock == "connect"


async def test_a_kept_connection_asks_nobody(names: Names, upstream: StartUpstream):
    up = await upstream(serve_forever)
    names.answers["east"] = [up.address[0]]
    pool = HttpPool(Origin("east", up.address[1], ""), resolver=names.resolver)
    for _ in range(3):
        names.time += FRESH_SECONDS
        response = await pool.fetch("GET", "/", b"")
        await response.read(100)
    assert names.asked == ["east"]
    pool.close()


async def test_a_name_that_has_moved_is_followed_within_one_request(
    names: Names, upstream: StartUpstream
):
    up = await upstream(serve_forever)
    host, port = up.address
    names.answers["east"] = ["127.0.0.99"]  # nobody listens there
    pool = HttpPool(Origin("east", port, ""), resolver=names.resolver)
    with pytest.raises(NoConnection):
        await pool.fetch("GET", "/", b"")
    names.resolver.doubt("east")
    await names.ask("east")
    names.answers["east"] = [host]
    response = await pool.fetch("GET", "/", b"")
    assert response.status == 200
    pool.close()


async def test_the_next_address_is_tried_where_one_refuses(names: Names, upstream: StartUpstream):
    up = await upstream(serve_forever)
    names.answers["east"] = ["127.0.0.98", "127.0.0.99", up.address[0]]
    pool = HttpPool(Origin("east", up.address[1], ""), idle=0, resolver=names.resolver)
    for _ in range(3):
        assert (await pool.fetch("GET", "/", b"")).status == 200
    pool.close()


async def test_numbers_are_connected_to_without_a_lookup(names: Names, upstream: StartUpstream):
    up = await upstream(serve_forever)
    pool = up.pool(resolver=names.resolver)
    with suppress(KeyError):
        await pool.fetch("GET", "/", b"")
    assert names.asked == []
    pool.close()
