"""Coordination in Redis: each call is one Lua script over keys of one hash tag.

Works with Redis from 6.2 and Valkey, alone or behind Sentinel or a proxy. Run it with
`maxmemory-policy noeviction`, or apart from caches: an evicted lease is a lease for two.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import Any, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ReadOnlyError, RedisError

from prime_inference.adapters.redis import answers
from prime_inference.adapters.redis.cancellation import bounded, heed_cancellation
from prime_inference.adapters.redis.circuit import StoreCircuit
from prime_inference.adapters.redis.refusals import refusal
from prime_inference.adapters.redis.scripts import Argument, Script, ScriptRunner
from prime_inference.domain.sharing import BATCH_FRACTION
from prime_inference.ports.coordination import (
    BEAT_S,
    FORGET_CLOSED_S,
    NEWCOMERS_FRACTION,
    PROMPT_S,
    RETURN_S,
    SAFE_FLOOR,
    BlockAsk,
    BlockGrant,
    BreakerReading,
    BreakerRecord,
    CoordinationRefused,
    CoordinationUnavailable,
    OpenTime,
    ProbeAsk,
    ProbeGrant,
    ProbeResult,
    Push,
    RequestAsk,
    RequestGrant,
    Trip,
)

CALL_S = 0.05  # a script takes well below 1 ms; what takes longer is trouble
CONNECT_S = 0.05
CONNECTIONS = 16  # more than calls at a time, but for bursts of request leases: those queue
KEEP_S = 24 * 3600.0  # keys outlive what is in them: a pool idle over night is not a new one
LEARNING_S = 10.0  # one lease time (`LeaseSettings.ttl_s`)
PING_S = 30.0  # a silent subscription is asked if it lives; proxies drop what is idle for 60 s
BLOCKS_PER_COMMAND = 64  # takes Redis 2 ms or so, and nobody else is served meanwhile
BLOCKS_TAG = "{blocks}"  # one command leases blocks of many pools: in a cluster, on one node

T = TypeVar("T")


class RedisCoordination:
    """Implements `ports.coordination.Coordination`.

    `prefix` separates the fleets that share a server.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "prime",
        learning_s: float = LEARNING_S,
        call_s: float = CALL_S,
        connect_s: float = CONNECT_S,
        ping_s: float = PING_S,
    ) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=call_s,
            socket_timeout=call_s,
            socket_connect_timeout=connect_s,
            retry=Retry(NoBackoff(), 0),  # a late answer is worth nothing; the next ask comes soon
        )
        self._client = Redis.from_pool(pool)
        self._scripts = ScriptRunner(self._client)
        self._blocks = Script("lease_blocks")
        self._returns = Script("return_blocks")
        self._breakers = Script("breakers")
        self._requests = Script("requests")
        self._circuit = StoreCircuit()
        self._refusal: str | None = None  # the last failure, if the store told its reason
        self._prefix = prefix
        self._learning_us = _us(learning_s)
        self._limit_s = call_s + connect_s
        self._ping_s = ping_s
        self._breakers_key = f"{prefix}:breakers"
        self._channel = f"{prefix}:breakers:changed"

    async def lease_blocks(self, asks: Sequence[BlockAsk]) -> Sequence[BlockGrant]:
        rules = (
            self._learning_us, BATCH_FRACTION, NEWCOMERS_FRACTION, int(KEEP_S * 1e3),
            SAFE_FLOOR, _us(PROMPT_S), _us(RETURN_S),
        )  # fmt: skip
        granted: list[BlockGrant] = []
        for some in _batched(asks, BLOCKS_PER_COMMAND):  # the bound in time is that of one command
            keys = [self._block_key(ask.pool) for ask in some]
            wishes = chain.from_iterable(_ask(ask) for ask in some)
            async with self._call():
                found = await self._scripts.run(self._blocks, keys, *rules, *wishes)
                granted += answers.block_grants(found, len(some))
        return granted

    async def return_blocks(self, holder: str, pools: Sequence[str], sequence: int) -> None:
        for some in _batched(pools, BLOCKS_PER_COMMAND):
            async with self._call():
                keys = [self._block_key(pool) for pool in some]
                await self._scripts.run(self._returns, keys, holder, sequence)

    async def trip(self, trip: Trip) -> BreakerRecord:
        times = _open_time(trip.open_time)
        return answers.record(
            await self._breaker("trip", trip.deployment, trip.epoch, trip.cause, *times)
        )

    async def probe(self, ask: ProbeAsk) -> ProbeGrant:
        return answers.probe_grant(
            await self._breaker("probe", ask.deployment, ask.owner, _us(ask.ttl_s), ask.tickets)
        )

    async def conclude(self, result: ProbeResult) -> BreakerRecord:
        return answers.record(
            await self._breaker(
                "conclude",
                result.deployment,
                result.owner,
                result.epoch,
                result.verdict,
                result.answers,
                *_open_time(result.open_time),
            )
        )

    async def breakers(self, known_version: int) -> BreakerReading:
        return answers.reading(await self._breaker("read", known_version, _us(BEAT_S)))

    async def watch(self, listener: Callable[[Push], None]) -> None:
        try:
            async with self._client.pubsub() as subscription:
                await subscription.subscribe(self._channel)
                await self._listen(subscription, listener)
        except (RedisError, OSError, TimeoutError) as error:
            if told := refusal(error):
                raise CoordinationRefused(f"no subscription: {told}") from error
            raise CoordinationUnavailable(f"lost the subscription: {error}") from error

    async def acquire(self, ask: RequestAsk) -> RequestGrant:
        return answers.request_grant(await self._request("acquire", ask), ask)

    async def renew(self, ask: RequestAsk) -> bool:
        return answers.flag(await self._request("renew", ask))

    async def release(self, ask: RequestAsk) -> bool:
        return answers.flag(await self._request("release", ask))

    async def close(self) -> None:
        await self._client.aclose()

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Bound a call in time, and turn what can go wrong into CoordinationUnavailable."""
        if not self._circuit.allows(time.monotonic()):
            if self._refusal is not None:
                raise CoordinationRefused(self._refusal)
            raise CoordinationUnavailable("the store did not answer lately")
        try:
            async with bounded(self._limit_s):
                yield
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, ArithmeticError) as error:
            self._circuit.failed(time.monotonic())
            if isinstance(error, ReadOnlyError):  # a primary that was demoted: look for the new one
                await self._client.connection_pool.disconnect(inuse_connections=False)
            self._refusal = refusal(error)
            if self._refusal is not None:
                raise CoordinationRefused(self._refusal) from error
            raise CoordinationUnavailable(f"{type(error).__name__}: {error}") from error
        self._circuit.answered()

    async def _breaker(self, op: str, *arguments: Argument) -> Any:
        async with self._call():
            return await self._scripts.run(
                self._breakers,
                [self._breakers_key],
                op,
                self._channel,
                int(KEEP_S * 1e3),
                _us(FORGET_CLOSED_S),
                *arguments,
            )

    async def _request(self, op: str, ask: RequestAsk) -> Any:
        keys = []
        for limit in ask.limits:
            key = f"{self._prefix}:requests:{_tag(ask.scope)}:{limit.name}"
            keys += [key, f"{key}:latest"]
        most = [limit.most for limit in ask.limits]
        async with self._call():
            return await self._scripts.run(
                self._requests, keys, op, ask.member, _us(ask.ttl_s), int(KEEP_S * 1e3), *most
            )

    def _block_key(self, pool: str) -> str:
        return f"{self._prefix}:{BLOCKS_TAG}:{pool}"

    async def _listen(self, subscription: Any, listener: Callable[[Push], None]) -> None:
        asked = False
        while True:
            heed_cancellation()
            message = await subscription.get_message(timeout=self._ping_s)
            if message is None:
                if asked:
                    raise TimeoutError("the subscription is silent")
                await subscription.ping()
                asked = True
                continue
            asked = False
            if message["type"] == "message":
                try:
                    push = answers.push(message["data"])
                except CoordinationUnavailable:
                    continue  # not ours; the poll has the truth
                listener(push)


def _tag(name: str) -> str:
    """A hash tag: keys with the same one live together, also in a cluster."""
    return "{" + name.replace("%", "%25").replace("}", "%7D") + "}"


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _open_time(open_time: OpenTime) -> tuple[int, int, int]:
    return _us(open_time.base_s), _us(open_time.cap_s), _us(open_time.forget_s)


def _ask(ask: BlockAsk) -> Sequence[Argument]:
    return (
        ask.holder, ask.sequence, ask.capacity, ask.interactive, ask.batch, ask.has,
        ask.in_flight, _us(ask.ttl_s), ask.sharing, ask.reservation, ask.reserved, ask.kept,
        ask.safe, ask.keep, ask.has_batch,
    )  # fmt: skip


def _batched(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), most):
        yield items[start : start + most]
