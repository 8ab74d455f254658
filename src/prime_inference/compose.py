"""The composition root: the only place that wires adapters into ports and starts processes."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from prime_inference.adapters.files.cache_reports import CacheReportsFile
from prime_inference.adapters.files.ready_fleet import ReadyFleet
from prime_inference.adapters.files.state_lock import holding
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.compose_billing import BillingOptions as BillingOptions
from prime_inference.compose_listeners import listening as listening
from prime_inference.compose_options import DRAIN_SECONDS as DRAIN_SECONDS
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
from prime_inference.gateway.toolcalls.constrain import TOOL_PARAMETERS

log = logging.getLogger(__name__)

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
            follow=lambda live: ready.follow(live.replace, live.said_down, live.refuse),
            cache_reports=caches,
        ) as (endpoint, stop):
            announce(endpoint(next((model.id for model in catalog.models()), "")))
            await stop()


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
    listen = options.listen
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
