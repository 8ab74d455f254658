"""A gateway's two listeners, and what runs beside them: the part of `compose` that all share."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from prime_inference.adapters.files.endpoint_file import EndpointFile
from prime_inference.adapters.files.key_store import FileKeyStore
from prime_inference.adapters.sqlite.responses import SqliteResponseStore
from prime_inference.compose_billing import BillingParts, billing_parts
from prime_inference.compose_options import Endpoint, ListenOptions
from prime_inference.gateway.access_log import AccessLog
from prime_inference.gateway.app import Gateway
from prime_inference.gateway.auth import Authenticator
from prime_inference.gateway.cache_figures import CacheFigures, NoReports, Reports
from prime_inference.gateway.canary import Canaries
from prime_inference.gateway.control import ControlListener
from prime_inference.gateway.decision_log import DecisionLog
from prime_inference.gateway.fleet_api import FleetApi
from prime_inference.gateway.fleet_metrics import FleetMetrics
from prime_inference.gateway.fleet_status import FleetView, fleet_view
from prime_inference.gateway.inference import Inference
from prime_inference.gateway.live_fleet import LiveFleet
from prime_inference.gateway.messages_api import MessagesApi
from prime_inference.gateway.metrics import Metrics
from prime_inference.gateway.models_api import ModelsApi
from prime_inference.gateway.readiness import HealthChecks
from prime_inference.gateway.reservation_metrics import ReservationMetrics
from prime_inference.gateway.reservation_watch import ReservationWatch
from prime_inference.gateway.responses_api import ResponsesApi
from prime_inference.gateway.settlement import Settlement
from prime_inference.gateway.stop_signal import StoppedAtOnce, StopSignal
from prime_inference.gateway.token_count import TokenCounter
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import ChangingCatalog
from prime_inference.ports.clock import steady_clock
from prime_inference.ports.coordination import Coordination
from prime_inference.reliability.background import Background, end
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import Runner
from prime_inference.reliability.settings import Settings
from prime_inference.routing.tool_calls import ToolCallRanking
from prime_inference.wire.http_server import HttpServer
from prime_inference.wire.openai.errors import render_error
from prime_inference.wire.resolver import Resolver

log = logging.getLogger(__name__)

Follow = Callable[[LiveFleet], Coroutine[Any, Any, None]]
"""Changes the fleet while it is served; called again should it fail."""

NotReady = Callable[[], str | None]
"""Why no request can be served, or None."""

Listening = tuple[Callable[[str], Endpoint], Callable[[], Coroutine[Any, Any, None]]]
"""Describes the endpoint for a model; waits for the signal to stop, then drains."""


@contextlib.asynccontextmanager
async def listening(
    catalog: ChangingCatalog,
    options: ListenOptions,
    not_ready: NotReady,
    random: Random | None = None,
    follow: Follow | None = None,
    cache_reports: Reports | None = None,
) -> AsyncIterator[Listening]:
    """A gateway's two listeners over `catalog`.

    Yields a function that describes the endpoint for a model and one that waits for the
    signal to stop and then drains, which may raise StoppedAtOnce. `random` breaks ties
    between deployments; `follow` changes the fleet while it is served; `cache_reports` is what
    the fleet's workers tell of their caches. Raises StateFolderError, OSError for a port in use.
    """
    keys = FileKeyStore.open(options.state_dir, time.time())
    background = Background(asyncio.get_running_loop().time)
    async with contextlib.AsyncExitStack() as stack:
        parts = None
        resolver = Resolver()
        upstreams = Upstreams(catalog, asyncio.get_running_loop().time, resolver)
        if options.billing is not None:
            parts = await stack.enter_async_context(
                billing_parts(
                    options.billing,
                    options.state_dir,
                    keys,
                    catalog,
                    upstreams.slot_speed,
                    background,
                )
            )
            await parts.fleet_prices.publish(catalog.models())
        core = _core(catalog, upstreams, resolver, options, random or Random(), parts)  # noqa: S311
        stack.push_async_callback(core.close)
        app = await stack.enter_async_context(_public(core, options, keys, parts))
        public = HttpServer(app.handle, app.refusal, check_head=app.check_head)
        live = LiveFleet(
            catalog, core.upstreams, core.guard, parts.fleet_prices.publish if parts else None
        )

        def state() -> str | None:
            return "draining" if public.draining else not_ready()

        reports = cache_reports or NoReports()
        control = _control(core, live, keys, parts, background, reports, state)
        listeners = _listeners(
            options, keys, public, HttpServer(control.handle, render_error), live.look_again
        )
        tasks = _started(background, core, control, live, parts, follow)
        stack.push_async_callback(_farewell, core, tasks)
        yield await stack.enter_async_context(listeners)


@dataclass(frozen=True)
class _Core:
    """What decides where requests go, sends them there and counts them."""

    catalog: ChangingCatalog
    metrics: Metrics
    upstreams: Upstreams
    access_log: AccessLog
    settlement: Settlement
    ranking: ToolCallRanking
    tool_calls: ToolCalls
    guard: Guard
    coordination: Coordination
    resolver: Resolver
    canaries: Canaries
    health: HealthChecks
    runner: Runner
    inference: Inference

    async def close(self) -> None:
        await self.tool_calls.close()
        self.upstreams.close()
        self.settlement.flush()
        self.access_log.close()


def _core(
    catalog: ChangingCatalog,
    upstreams: Upstreams,
    resolver: Resolver,
    options: ListenOptions,
    random: Random,
    parts: BillingParts | None,
) -> _Core:
    clock = asyncio.get_running_loop().time
    steady = steady_clock()  # a lease must not outlast its time because the machine slept
    metrics = Metrics()
    access_log = AccessLog(options.state_dir / "generations.jsonl")
    ranking = ToolCallRanking(clock)
    tool_calls = ToolCalls([metrics, upstreams, ranking])
    guard = Guard(secrets.token_hex(8), Settings(), steady, random, canary=True)
    guard.configure(
        deployment for model in catalog.models() for deployment in catalog.deployments(model.id)
    )
    reservations = ReservationMetrics(guard)
    metrics.register(reservations)
    settlement = Settlement([metrics, upstreams, access_log, *([reservations] if parts else [])])
    coordination = options.coordination(steady)
    canaries = Canaries(upstreams)
    inference = Inference(
        catalog,
        upstreams,
        guard,
        settlement,
        tool_calls,
        ranking,
        clocks=options.clocks,
        keep_alive_seconds=options.keep_alive_seconds,
        billing=parts.billing if parts else None,
    )
    metrics.in_flight.set_function(lambda: inference.in_flight)
    return _Core(
        catalog,
        metrics,
        upstreams,
        access_log,
        settlement,
        ranking,
        tool_calls,
        guard,
        coordination,
        resolver,
        canaries,
        HealthChecks(catalog, guard, random, resolver=resolver, upstreams=upstreams),
        Runner(guard, coordination, steady, canaries.send),
        inference,
    )


@contextlib.asynccontextmanager
async def _public(
    core: _Core, options: ListenOptions, keys: FileKeyStore, parts: BillingParts | None
) -> AsyncIterator[Gateway]:
    """What the public port answers."""
    response_store = SqliteResponseStore(options.state_dir / "responses.sqlite")
    token_counter = TokenCounter(core.catalog, core.resolver)
    auth = parts.authenticator() if parts else Authenticator(keys)
    clock = asyncio.get_running_loop().time
    price = parts.price if parts else _no_price
    try:
        yield Gateway(
            auth,
            core.inference,
            ModelsApi(core.catalog, core.upstreams, core.ranking, clock, price),
            ResponsesApi(core.inference, response_store),
            MessagesApi(core.inference, token_counter),
            core.metrics,
            parts.routes(auth, core.metrics) if parts else {},
        )
    finally:
        token_counter.close()
        await response_store.close()


def _control(
    core: _Core,
    live: LiveFleet,
    keys: FileKeyStore,
    parts: BillingParts | None,
    background: Background,
    cache_reports: Reports,
    not_ready: NotReady,
) -> ControlListener:
    """What the control port answers; its metrics are registered."""
    clock = asyncio.get_running_loop().time
    caches = CacheFigures(core.catalog, core.upstreams, cache_reports, clock)

    def failing() -> Mapping[str, str]:
        return {**(parts.lag.failing if parts else {}), **background.failing}

    def view() -> FleetView:
        return fleet_view(
            live,
            core.catalog,
            core.upstreams,
            core.guard,
            core.ranking,
            caches.views(),
            core.runner.refusal,
            failing(),
            parts.reservation_views(core.guard) if parts else (),
        )

    core.metrics.register(
        FleetMetrics(
            live,
            view,
            core.guard,
            core.ranking,
            core.runner,
            core.health,
            core.canaries,
            background,
        )
    )
    core.metrics.register(caches)
    return ControlListener(
        core.metrics,
        core.settlement,
        not_ready,
        FleetApi(live, view, keys.own_key),
        admin=parts.admin.handle if parts else None,
        failing=failing,
        refresh=cache_reports.refresh,
    )


def _started(
    background: Background,
    core: _Core,
    control: ControlListener,
    live: LiveFleet,
    parts: BillingParts | None,
    follow: Follow | None,
) -> list[asyncio.Task[None]]:
    """What runs beside the requests. The names are labels of a metric."""
    decisions = DecisionLog(core.guard, core.runner, core.ranking)
    tasks = [
        background.start("event loop lag", control.watch_loop),
        background.start("coordination", core.runner.run),
        background.start("health checks", core.health.run),
        background.start("decision log", decisions.watch),
    ]
    if parts is not None:
        watch = ReservationWatch(parts.directory, parts.fleet, core.guard, time.time)
        tasks.append(background.start("reservations", watch.run))
    if follow is not None:
        tasks.append(background.start("fleet", lambda: follow(live)))
    return tasks


async def _farewell(core: _Core, tasks: list[asyncio.Task[None]]) -> None:
    await end(tasks)
    await core.runner.farewell()
    await core.coordination.close()


@contextlib.asynccontextmanager
async def _listeners(
    options: ListenOptions,
    keys: FileKeyStore,
    public: HttpServer,
    control: HttpServer,
    reload: Callable[[], None],
) -> AsyncIterator[Listening]:
    """Both ports are open inside; the public one is closed first."""
    endpoint_file = EndpointFile(options.state_dir)
    stop_signal = StopSignal(reload)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(control.close)
        stack.push_async_callback(public.close)
        stack.callback(endpoint_file.remove)
        host, port = await public.start(options.host, options.port)
        control_host, control_port = await control.start(options.host, options.control_port)

        def endpoint(model: str) -> Endpoint:
            found = Endpoint(
                f"http://{_authority(host, port)}/api/v1",
                f"http://{_authority(control_host, control_port)}",
                keys.own_key,
                model,
            )
            endpoint_file.write(found.base_url, found.control_url, model)
            return found

        async def stop() -> None:
            await stop_signal.wait()
            log.info("draining: %d requests in flight", public.in_flight)
            drain = asyncio.get_running_loop().create_task(public.drain(options.drain_seconds))
            second = await stop_signal.wait_again(drain)
            if second:
                log.warning("stopping at once: %d requests in flight", public.in_flight)
                raise StoppedAtOnce(second)

        _tune_garbage_collection()
        yield endpoint, stop


def _tune_garbage_collection() -> None:
    """Look for reference cycles rarely: a request makes none, and looking costs.

    With CPython's threshold of 700 a gateway spent 18 % of its CPU on collections that
    found nothing (89 against 73 us a request). Young objects are held a little longer:
    20,000 of them are about 2 MB.
    """
    gc.collect()
    gc.freeze()  # what start-up made lives for ever
    gc.set_threshold(20_000, 20, 20)


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _no_price(model: str) -> None:
    """Nobody is billed."""
