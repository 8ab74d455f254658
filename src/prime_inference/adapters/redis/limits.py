"""Limits in Redis: every decision is one Lua script over keys of one hash tag.

Budgets must not be evicted: run it with `maxmemory-policy noeviction`. What it forgets is
restored from what replicas have seen and from the ledger (docs/billing.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

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
)

CALL_S = 0.05  # as adapters.redis.coordination: what takes longer is trouble
CONNECTIONS = 16
KEEP_S = 40 * 24 * 3600.0  # a monthly budget outlives its month by a week
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
            place, *numbers = (int(each) for each in answer)
            if not (0 <= place <= len(ask.demands) and len(numbers) == 3 * len(ask.demands)):
                raise ValueError("the store's answer is none of ours")
            states = tuple(
                LimitState(numbers[i], numbers[i + 1] / 1e6, numbers[i + 2])
                for i in range(0, len(numbers), 3)
            )
        return HoldGrant(place - 1 if place else None, states)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        async with self._call():
            await self._run("settle", settlements)

    async def renew(self, asks: Sequence[HoldAsk]) -> None:
        async with self._call():
            await self._run("renew", [(ask, [0] * len(ask.demands)) for ask in asks])

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
                round(KEEP_S * 1e3),
                round(KEEP_SETTLED_S * 1e3),
            ]
            for demand, amount in zip(ask.demands, used, strict=True):
                key = f"{self._prefix}:{demand.limit}"
                keys += [key, f"{key}:holds", f"{key}:amounts"]
                arguments += _arguments(demand, amount)
            calls.append((keys, arguments))
        return await self._scripts.run_many(self._script, calls)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Bound a call in time, and turn what can go wrong into LimitsUnavailable."""
        if not self._circuit.allows(time.monotonic()):
            raise LimitsUnavailable("the store did not answer lately")
        try:
            async with asyncio.timeout(self._limit_s):
                yield
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, ArithmeticError) as error:
            self._circuit.failed(time.monotonic())
            told = refusal(error) or f"{type(error).__name__}: {error}"
            raise LimitsUnavailable(told) from error
        self._circuit.answered()


def _arguments(demand: Demand, used: int) -> list[Argument]:
    return [_type(demand.kind), demand.most, demand.amount, demand.window, demand.seen, used]


def _type(kind: LimitKind) -> str:
    if kind.is_rate:
        return "rate"
    return "budget" if kind.is_budget else "concurrency"
