"""Limits in Redis: every decision is one Lua script over keys of one hash tag.

Budgets must not be evicted: run it with `maxmemory-policy noeviction`. What it forgets is
restored from what replicas have seen and from the ledger (docs/billing.md).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from prime_inference.adapters.redis.cancellation import bounded
from prime_inference.adapters.redis.circuit import StoreCircuit
from prime_inference.adapters.redis.refusals import refusal
from prime_inference.adapters.redis.scripts import Argument, Script, ScriptRunner
from prime_inference.domain.limits import LimitKind
from prime_inference.ports.limits import (
    KEEP_SETTLED_S,
    Demand,
    HoldAsk,
    HoldGrant,
    LimitState,
    LimitsUnavailable,
    Settlement,
    keep_s,
)

CALL_S = 0.05  # as adapters.redis.coordination: what takes longer is trouble
CONNECTIONS = 16
TAG = "{limits}"


class RedisLimits:
    """Implements `ports.limits.LimitStore`. `prefix` separates fleets that share a server."""

    def __init__(
        self, url: str, *, prefix: str = "prime", call_s: float = CALL_S, connect_s: float = CALL_S
    ) -> None:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=CONNECTIONS,
            timeout=call_s,
            socket_timeout=call_s,
            socket_connect_timeout=connect_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._client = Redis.from_pool(pool)
        self._scripts = ScriptRunner(self._client)
        self._script = Script("limits")
        self._circuit = StoreCircuit()
        self._prefix = f"{prefix}:{TAG}"
        self._limit_s = call_s + connect_s

    async def reserve(self, ask: HoldAsk) -> HoldGrant:
        async with self._call():
            (answer,) = await self._run("reserve", [(ask, [0] * len(ask.demands))])
            return _grant(answer)

    async def settle(self, settlements: Sequence[Settlement]) -> Sequence[Sequence[LimitState]]:
        async with self._call():
            return [_grant(answer).states for answer in await self._run("settle", settlements)]

    async def renew(self, asks: Sequence[HoldAsk]) -> None:
        async with self._call():
            await self._run("renew", [(ask, [0] * len(ask.demands)) for ask in asks])

    async def life(self) -> int:
        async with self._call():
            (answer,) = await self._run("look", [(HoldAsk("", (), 0.0), ())])
            return _grant(answer).life

    async def close(self) -> None:
        await self._client.aclose()

    async def _run(self, op: str, asks: Sequence[Settlement]) -> list[Any]:
        calls: list[tuple[Sequence[str], Sequence[Argument]]] = []
        for ask, used in asks:
            keys = [f"{self._prefix}:member:{ask.member}"]
            arguments: list[Argument] = [
                op,
                ask.member,
                round(ask.ttl_s * 1e6),
                round(KEEP_SETTLED_S * 1e3),
            ]
            for demand, amount in zip(ask.demands, used, strict=True):
                key = f"{self._prefix}:{_counter(demand)}"
                keys += [key, f"{key}:holds", f"{key}:amounts"]
                arguments += _arguments(demand, amount)
            calls.append(([*keys, f"{self._prefix}:life"], arguments))
        return await self._scripts.run_many(self._script, calls)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Bound a call in time, and turn what can go wrong into LimitsUnavailable."""
        if not self._circuit.allows(time.monotonic()):
            raise LimitsUnavailable("the store did not answer lately")
        try:
            async with bounded(self._limit_s):
                yield
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, ArithmeticError) as error:
            self._circuit.failed(time.monotonic())
            told = refusal(error) or f"{type(error).__name__}: {error}"
            raise LimitsUnavailable(told) from error
        self._circuit.answered()


def _grant(answer: Sequence[Any]) -> HoldGrant:
    place, life, *numbers = (int(each) for each in answer)
    states = tuple(
        LimitState(left, wait / 1e6, spent, bool(restored))
        for left, wait, spent, restored in zip(*(iter(numbers),) * 4, strict=True)
    )
    if not 0 <= place <= len(states):
        raise ValueError("the store's answer is none of ours")
    return HoldGrant(place - 1 if place else None, states, life)


def _counter(demand: Demand) -> str:
    """Every window of a budget has its own; the limit's id may have a colon, but no @."""
    return f"{demand.limit}@{demand.window}" if demand.window else demand.limit


def _arguments(demand: Demand, used: int) -> list[Argument]:
    keep_ms = round(keep_s(demand.kind) * 1e3)
    return [_type(demand.kind), demand.most, demand.amount, demand.seen, used, keep_ms]


def _type(kind: LimitKind) -> str:
    if kind.is_rate:
        return "rate"
    return "budget" if kind.is_budget else "concurrency"
