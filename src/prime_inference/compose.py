"""The composition root: the only place that wires adapters into ports and starts processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from prime_inference.adapters.files.cache_reports import CacheReportsFile
from prime_inference.adapters.files.endpoint_file import EndpointFile
from prime_inference.adapters.files.key_store import FileKeyStore
from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.adapters.files.state_lock import holding
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.adapters.sqlite.responses import SqliteResponseStore
from prime_inference.compose_billing import BillingOptions as BillingOptions
from prime_inference.compose_billing import BillingParts, billing_parts
from prime_inference.compose_options import ENGINE_PARAMETERS as ENGINE_PARAMETERS
from prime_inference.compose_options import Announce as Announce
from prime_inference.compose_options import Endpoint as Endpoint
from prime_inference.compose_options import FleetGatewayOptions as FleetGatewayOptions
from prime_inference.compose_options import GatewayOptions as GatewayOptions
from prime_inference.compose_options import ListenOptions as ListenOptions
from prime_inference.compose_options import ServeOptions as ServeOptions
from prime_inference.domain.models import Deployment, GatewayParser, Model
from prime_inference.engines.local.gguf import read_head
from prime_inference.engines.local.memory import fitting_context, free_memory, require_room
from prime_inference.engines.local.revision import revision
from prime_inference.engines.local.supervisor import LocalEngine
from prime_inference.engines.local.weights import SMOLLM2_135M, Progress, fetch_in_thread
from prime_inference.fleet.caches import reports_file
from prime_inference.gateway.access_log import AccessLog
from prime_inference.gateway.app import Gateway
from prime_inference.gateway.auth import Authenticator
from prime_inference.gateway.cache_figures import CacheFigures, Reports
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
from prime_inference.gateway.responses_api import ResponsesApi
from prime_inference.gateway.settlement import Settlement
from prime_inference.gateway.stop_signal import StoppedAtOnce, StopSignal
from prime_inference.gateway.token_count import TokenCounter
from prime_inference.gateway.toolcalls.constrain import TOOL_PARAMETERS
from prime_inference.gateway.toolcalls.tool_calls import ToolCalls
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import ChangingCatalog
from prime_inference.reliability.guard import Guard
from prime_inference.reliability.runner import Runner
from prime_inference.reliability.settings import Settings
from prime_inference.routing.tool_calls import ToolCallRanking
from prime_inference.wire.http_server import HttpServer
from prime_inference.wire.openai.errors import render_error

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0  # Kubernetes' default grace period
DEFAULT_MODEL_ID = "huggingfacetb/smollm2-135m-instruct"
LOCAL_DEPLOYMENT = "local"

LOCAL_SCHEMA_ALTERNATIVES = 100
"""llama.cpp checks each on the one thread that decodes for everybody: 100 hold all up for 0.7 s,
3,000 for over a minute (docs/engine-local.md)."""


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a server's coroutine on the event loop that the gateway is made for."""
    uvloop.run(main)


async def gateway(options: GatewayOptions, announce: Announce) -> None:
    """Run a gateway in front of one upstream until it is told to stop.

    Raises StoppedAtOnce, StateFolderError, OSError for a port in use.
    """
    model = Model(
        id=options.model_id,
        revision="unknown",
        created=int(time.time()),
        context_tokens=options.context_tokens,
        max_output_tokens=options.context_tokens,
    )
    deployment = Deployment(
        id="upstream",
        model=model.id,
        datacenter="local",
        base_url=options.upstream,
        engine=options.engine,
        slots=options.slots,
        upstream_model=options.upstream_model or options.model_id,
        parameters=ENGINE_PARAMETERS[options.engine]
        | (frozenset() if options.tool_format is None else TOOL_PARAMETERS),
        routes=frozenset({"chat/completions", "completions", "embeddings"}),
        tool_parser=options.tool_parser,
    )
    catalog = MemoryCatalog([model], [deployment])
    with holding(options.listen.state_dir):
        async with listening(catalog, options.listen, lambda: None) as (endpoint, stop):
            announce(endpoint(model.id))
            await stop()


async def fleet_gateway(options: FleetGatewayOptions, announce: Announce) -> None:
    """Run a gateway in front of the deployments that a file lists, as it changes."""
    ready = ReadyFleet(options.deployments, ENGINE_PARAMETERS["dynamo"], time.time)
    ready.read()
    catalog = MemoryCatalog(ready.models, ready.deployments)
    caches = CacheReportsFile(reports_file(options.deployments), time.time)
    with holding(options.listen.state_dir):
        async with listening(
            catalog,
            options.listen,
            ready.not_ready,
            follow=lambda live: ready.follow(live.replace, live.said_down),
            cache_reports=caches.latest,
        ) as (endpoint, stop):
            announce(endpoint(next((model.id for model in catalog.models()), "")))
            await stop()


@contextlib.asynccontextmanager
async def listening(
    catalog: ChangingCatalog,
    options: ListenOptions,
    not_ready: Callable[[], str | None],
    random: Random | None = None,
    follow: Callable[[LiveFleet], Coroutine[Any, Any, None]] | None = None,
    cache_reports: Reports = dict,
) -> AsyncIterator[tuple[Callable[[str], Endpoint], Callable[[], Coroutine[Any, Any, None]]]]:
    """A gateway's two listeners over `catalog`.

    Yields a function that describes the endpoint for a model and one that waits for the
    signal to stop and then drains, which may raise StoppedAtOnce. `random` breaks ties
    between deployments; `follow` changes the fleet while it is served; `cache_reports` is what
    the fleet's workers tell of their caches. Raises StateFolderError, OSError for a port in use.
    """
    keys = FileKeyStore.open(options.state_dir, time.time())
    async with contextlib.AsyncExitStack() as stack:
        parts = None
        if options.billing is not None:
            parts = await stack.enter_async_context(
                billing_parts(options.billing, options.state_dir, keys, catalog.models)
            )
            await parts.fleet_prices.publish(catalog.models())
        listeners = _listening(
            catalog, options, not_ready, random, follow, cache_reports, keys, parts
        )
        yield await stack.enter_async_context(listeners)


@contextlib.asynccontextmanager
async def _listening(
    catalog: ChangingCatalog,
    options: ListenOptions,
    not_ready: Callable[[], str | None],
    random: Random | None,
    follow: Callable[[LiveFleet], Coroutine[Any, Any, None]] | None,
    cache_reports: Reports,
    keys: FileKeyStore,
    parts: BillingParts | None,
) -> AsyncIterator[tuple[Callable[[str], Endpoint], Callable[[], Coroutine[Any, Any, None]]]]:
    loop = asyncio.get_running_loop()
    metrics = Metrics()
    upstreams = Upstreams(catalog, loop.time)
    access_log = AccessLog(options.state_dir / "generations.jsonl")
    settlement = Settlement([metrics, upstreams, access_log])
    ranking = ToolCallRanking(loop.time)
    tool_calls = ToolCalls([metrics, upstreams, ranking])
    random = random or Random()  # noqa: S311
    guard = Guard(secrets.token_hex(8), Settings(), loop.time, random, canary=True)
    guard.configure(
        deployment for model in catalog.models() for deployment in catalog.deployments(model.id)
    )
    coordination = options.coordination(loop.time)
    canaries, health = Canaries(upstreams), HealthChecks(catalog, guard, random)
    runner = Runner(guard, coordination, loop.time, canaries.send)
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
    response_store = SqliteResponseStore(options.state_dir / "responses.sqlite")
    token_counter = TokenCounter(catalog)
    auth = parts.authenticator() if parts else Authenticator(keys)
    app = Gateway(
        auth,
        inference,
        ModelsApi(catalog, upstreams, ranking, loop.time, parts.price if parts else _no_price),
        ResponsesApi(inference, response_store),
        MessagesApi(inference, token_counter),
        metrics,
        parts.routes(auth, metrics) if parts else {},
    )
    public_server = HttpServer(app.handle, app.refusal, check_head=app.check_head)
    live = LiveFleet(catalog, upstreams, guard, parts.fleet_prices.publish if parts else None)
    caches = CacheFigures(catalog, upstreams, cache_reports, loop.time)

    def view() -> FleetView:
        return fleet_view(live, catalog, upstreams, guard, ranking, caches.views(), runner.refusal)

    metrics.register(FleetMetrics(live, view, guard, ranking, runner, health, canaries))
    metrics.register(caches)
    control = ControlListener(
        metrics,
        settlement,
        lambda: "draining" if public_server.draining else not_ready(),
        FleetApi(live, view, keys.own_key),
        admin=parts.admin.handle if parts else None,
    )
    control_server = HttpServer(control.handle, render_error)
    stop_signal = StopSignal()
    decisions = DecisionLog(guard, runner, ranking)
    work = (control.watch_loop(), runner.run(), health.run(), decisions.watch())
    background = [_for_ever(each) for each in work]
    if follow is not None:
        background.append(_for_ever(follow(live)))
    endpoint_file = EndpointFile(options.state_dir)
    try:
        host, port = await public_server.start(options.host, options.port)
        control_host, control_port = await control_server.start(options.host, options.control_port)

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
            log.info("draining: %d requests in flight", public_server.in_flight)
            drain = loop.create_task(public_server.drain(DRAIN_SECONDS))
            second = await stop_signal.wait_again(drain)
            if second:
                raise StoppedAtOnce(second)

        _tune_garbage_collection()
        yield endpoint, stop
    finally:
        endpoint_file.remove()
        await public_server.close()
        for task in background:
            task.cancel()
        await asyncio.wait(background)
        await runner.farewell()
        await coordination.close()
        await control_server.close()
        await tool_calls.close()
        upstreams.close()
        token_counter.close()
        await response_store.close()
        settlement.flush()
        access_log.close()


def _for_ever(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run `work` beside the requests; should it end by a defect, the log has it."""

    def ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.critical("%s ended", task.get_coro(), exc_info=task.exception())

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


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


async def serve(
    options: ServeOptions, announce: Announce, progress: Progress = lambda done, total: None
) -> None:
    """Run gateway and local engine until they are told to stop.

    `progress` is told of the download of the default model's weights. Raises StoppedAtOnce,
    WeightsUnavailable, NotGguf, NotEnoughMemory, EngineFailed, StateFolderError, OSError for a
    port in use.
    """
    with holding(options.state_dir):
        await _serve(options, announce, progress)


async def _serve(options: ServeOptions, announce: Announce, progress: Progress) -> None:
    model_file = options.model_file
    if model_file is None:
        model_file = await fetch_in_thread(SMOLLM2_135M, options.cache_dir, progress)
    head = read_head(model_file)
    free = free_memory()
    context_tokens = options.context_tokens or fitting_context(
        head,
        weights_bytes=model_file.stat().st_size,
        slots=options.slots,
        free_bytes=free,
    )
    require_room(head, context_tokens=context_tokens, slots=options.slots, free_bytes=free)
    if context_tokens < head.context_tokens:
        log.warning(
            "a context of %d tokens, not the %d that the model was trained with",
            context_tokens,
            head.context_tokens,
        )
    engine = LocalEngine(
        model_file,
        slots=options.slots,
        context_tokens=context_tokens,
        deployment=LOCAL_DEPLOYMENT,
        log_file=options.state_dir / "engine.log",
    )
    listen = ListenOptions(
        options.state_dir,
        options.host,
        options.port,
        options.control_port,
        billing=options.billing,
    )
    await engine.start()
    try:
        catalog = local_catalog(options, engine, model_file, context_tokens)
        async with listening(catalog, listen, lambda: _engine_not_ready(engine)) as (
            endpoint,
            stop,
        ):
            announce(endpoint(catalog.models()[0].id))
            await stop()
    finally:
        await engine.stop()


def _engine_not_ready(engine: LocalEngine) -> str | None:
    return None if engine.state == "ready" else f"the engine is {engine.state}"


def local_catalog(
    options: ServeOptions, engine: LocalEngine, model_file: Path, context_tokens: int
) -> MemoryCatalog:
    if options.model_id:
        model_id = options.model_id
    elif options.model_file is None:
        model_id = DEFAULT_MODEL_ID
    else:
        model_id = f"local/{model_file.stem.lower()}"
    model = Model(
        id=model_id,
        revision=revision(model_file),
        created=int(model_file.stat().st_mtime),
        context_tokens=context_tokens,
        max_output_tokens=context_tokens,
        name=model_file.stem,
    )
    deployment = Deployment(
        id=LOCAL_DEPLOYMENT,
        model=model.id,
        datacenter="local",
        base_url=engine.base_url,
        engine="llama.cpp",
        slots=options.slots,
        upstream_model=model.id,
        parameters=ENGINE_PARAMETERS["llama.cpp"] | TOOL_PARAMETERS,
        routes=frozenset({"chat/completions", "completions", "embeddings"}),
        schema_alternatives=LOCAL_SCHEMA_ALTERNATIVES,
        tool_parser=GatewayParser("hermes", prompt="gateway"),
    )
    return MemoryCatalog([model], [deployment])


def _no_price(model: str) -> None:
    """Nobody is billed."""
