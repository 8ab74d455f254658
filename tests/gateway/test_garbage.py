"""A request leaves nothing to the garbage collector, whatever became of it.

Bodies of agents are megabytes: what only the collector frees stays for hundreds of requests.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from prime_inference.engines.mock import MockEngine
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, eventually


@contextmanager
def kept() -> Iterator[Counter[str]]:
    """Counts what of ours only the collector would free, by type, at the end of the block."""
    found: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(
            f"{type(each).__module__}.{type(each).__name__}"
            for each in gc.garbage
            if type(each).__module__.startswith("prime_inference.")
            and not type(each).__module__.startswith("prime_inference.engines.")
        )
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


PATHS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/chat/completions", {"messages": MESSAGES}),
    "responses": ("/responses", {"input": "Tell me about a river"}),
    "messages": ("/messages", {"messages": MESSAGES, "max_tokens": 20}),
}
SHORT = ClockLimits(first_token=0.2, idle=0.2, whole=0.2)


async def ask(gateway: RunningGateway, stream: bool, kind: str = "chat") -> None:
    path, body = PATHS[kind]
    await gateway.post(path, {"model": MODEL, "stream": stream, **body})


async def nothing_is_kept(gateway: RunningGateway, stream: bool, kind: str = "chat") -> None:
    await ask(gateway, stream, kind)  # what is made once
    await asyncio.sleep(0.02)
    with kept() as found:
        await ask(gateway, stream, kind)
        await asyncio.sleep(0.02)
    assert found == {}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("alone", [False, True], ids=["two", "one"])
@pytest.mark.parametrize(
    "behaviour", ["answer-5", "status-500", "status-400", "reset", "cut-after-3", "stall-after-3"]
)
async def test_a_request_leaves_nothing_to_the_collector(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    behaviour: str,
    alone: bool,
    stream: bool,
):
    gateway = await start_gateway(*([engine] if alone else [engine, spare]), clocks=SHORT)
    engine.behave(behaviour)
    await nothing_is_kept(gateway, stream)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("kind", ["responses", "messages"])
async def test_nor_in_another_dialect(
    start_gateway: StartGateway, engine: MockEngine, kind: str, stream: bool
):
    gateway = await start_gateway(engine, clocks=SHORT)
    for behaviour in ("answer-5", "status-500", "cut-after-3"):
        engine.behave(behaviour)
        await nothing_is_kept(gateway, stream, kind)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("behaviour", ["slow-first-30s", "pace-50ms.answer-900"])
async def test_nor_does_a_client_that_leaves(
    start_gateway: StartGateway,
    engine: MockEngine,
    spare: MockEngine,
    behaviour: str,
    stream: bool,
):
    gateway = await start_gateway(engine, spare)
    engine.behave(behaviour)
    kept_of_both: list[Counter[str]] = []
    for number in range(2):
        with kept() as found:
            asking = asyncio.ensure_future(ask(gateway, stream))
            await eventually(partial(_has_asked, engine, number))
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await eventually(lambda: engine.requests[-1].outcome == "client left")
            await asyncio.sleep(0.02)
        kept_of_both.append(found)
    assert kept_of_both[-1] == {}  # the first makes what is made once


def _has_asked(engine: MockEngine, number: int) -> bool:
    return len(engine.requests) > number
