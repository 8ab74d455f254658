"""The control listener: live, ready, metrics, fleet. Never on the public port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from prime_inference.domain.errors import MethodNotAllowed, NotFound
from prime_inference.gateway.fleet_api import FLEET, FleetApi
from prime_inference.gateway.metrics import Metrics
from prime_inference.gateway.settlement import Settlement
from prime_inference.wire.http import Handler, Reply, Request
from prime_inference.wire.openai.errors import JSON_TYPE, render_error

METRICS_TYPE = (b"content-type", b"text/plain; version=1.0.0; charset=utf-8")
ADMIN = "/admin/v1/"
LAG_SECONDS = 0.5
READING = ("GET", "HEAD")
SHOWN = ("/metrics", FLEET)


class ControlListener:
    """`/live`: the process answers. `/ready`: it can serve; `not_ready` says why it cannot.

    `refresh` is awaited before metrics or the fleet are shown.
    `failing` are tasks beside the requests, with what ends them again and again. `/ready` names
    them and stays 200: without them a gateway still serves by what it knew last, and taking it
    out would take all replicas out that share the cause.
    """

    def __init__(
        self,
        metrics: Metrics,
        settlement: Settlement,
        not_ready: Callable[[], str | None],
        fleet: FleetApi,
        admin: Handler | None = None,
        failing: Callable[[], Mapping[str, str]] = dict,
        refresh: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._refresh = refresh
        self._admin = admin
        self._failing = failing
        self._metrics = metrics
        self._settlement = settlement
        self._not_ready = not_ready
        self._fleet = fleet

    async def handle(self, request: Request, reply: Reply) -> None:
        if request.path in SHOWN and request.method in READING and self._refresh is not None:
            await self._refresh()
        if request.path == FLEET or request.path.startswith(f"{FLEET}/"):
            await self._fleet.handle(request, reply)
        elif self._admin is not None and request.path.startswith(ADMIN):
            await self._admin(request, reply)
        elif request.method not in READING:
            reply.send(
                *render_error(MethodNotAllowed(f"{request.path} takes GET.", allowed=READING))
            )
        elif request.path == "/live":
            self._send(200, {"status": "live"}, reply)
        elif request.path == "/ready":
            reason = self._not_ready()
            if reason is None:
                self._send(200, {"status": "ready", **self._troubles()}, reply)
            else:
                said = {"status": "not ready", "reason": reason, **self._troubles()}
                self._send(503, said, reply)
        elif request.path == "/metrics":
            self._settlement.flush()
            reply.send(200, [METRICS_TYPE], self._metrics.render())
        else:
            reply.send(
                *render_error(NotFound("There are /live, /ready, /metrics and /fleet here."))
            )

    async def watch_loop(self) -> None:
        """Measure how late the event loop runs, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            wanted = loop.time() + LAG_SECONDS
            await asyncio.sleep(LAG_SECONDS)
            self._metrics.loop_lag.set(max(0.0, loop.time() - wanted))

    def _troubles(self) -> dict[str, object]:
        failing = self._failing()
        return {"failing": failing} if failing else {}

    @staticmethod
    def _send(status: int, document: object, reply: Reply) -> None:
        reply.send(status, [JSON_TYPE], msgspec.json.encode(document))
