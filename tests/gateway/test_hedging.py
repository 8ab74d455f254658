"""A first token later than the deployment's own p99 is asked for elsewhere as well."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from prime_inference.engines.mock import MockEngine, expected_text
from prime_inference.gateway.hedging import Hedge, Rival
from prime_inference.reliability.settings import RetrySettings
from prime_inference.reliability.statistics import REFRESH_S

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway, eventually

ENOUGH = RetrySettings().hedge_least_samples + 30  # some go elsewhere before slots are leased
SESSION = {"x-session-id": "mine"}  # keeps the requests on one deployment
WAYS = pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])


async def ask(gateway: RunningGateway, stream: bool, **fields: Any) -> str:
    """The text of an answer, which has to be whole."""
    body = {"model": MODEL, "messages": MESSAGES, "stream": stream, **fields}
    answer = await gateway.post("/chat/completions", body, **SESSION)
    assert answer.status_code == 200
    if not stream:
        return str(answer.json()["choices"][0]["message"]["content"])
    assert answer.text.endswith("data: [DONE]\n\n")
    assert answer.text.count('"role"') == 1
    return answer.text


async def warm(
    gateway: RunningGateway, engine: MockEngine, spare: MockEngine, stream: bool
) -> tuple[MockEngine, MockEngine]:
    """The session's deployment, known well enough to tell what is late, and the other one."""
    for _ in range(0, ENOUGH, 10):
        await asyncio.gather(*(ask(gateway, stream, max_tokens=1) for _ in range(10)))
    await asyncio.sleep(REFRESH_S)  # so old may what the gateway knows be
    if len(engine.requests) < len(spare.requests):
        engine, spare = spare, engine
    assert len(engine.requests) > RetrySettings().hedge_least_samples
    engine.reset()
    spare.reset()
    return engine, spare


@WAYS
async def test_the_second_attempt_answers_when_the_first_is_late_and_the_loser_is_cancelled(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine, stream: bool
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, stream)
    hedges = await gateway.metric("prime_hedges_total", model=MODEL)
    home.behave("slow-first-20s")
    text = await ask(gateway, stream)
    if not stream:
        assert text == expected_text(MESSAGES)
    await home.quiet()
    assert [seen.outcome for seen in home.requests] == ["client left"]
    assert [seen.outcome for seen in other.requests] == ["complete"]
    generations = await gateway.generations(ENOUGH + 1)
    assert generations[-1]["outcome"] == "complete"
    assert generations[-1]["usage"]["completion_tokens"] == 64
    assert generations[-1]["deployment"] == ("engine-1" if other is spare else "engine-0")
    assert generations[-1]["hedged"]
    assert await gateway.metric("prime_hedges_total", model=MODEL) == hedges + 1
    home.behave("")  # its slot was given back, and being slow has not ejected it
    await ask(gateway, stream)
    assert home.requests[-1].outcome == "complete"
    home.behave("slow-first-500ms")  # nobody waits for what is cheap
    await ask(gateway, stream, service_tier="flex")
    assert len(other.requests) == 1


async def test_the_first_attempt_answers_when_it_is_faster_after_all(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, True)
    home.behave("slow-first-1s")
    other.behave("slow-first-20s")
    await ask(gateway, True)
    await other.quiet()
    assert [seen.outcome for seen in home.requests] == ["complete"]
    assert [seen.outcome for seen in other.requests] == ["client left"]


async def test_a_first_attempt_that_fails_leaves_the_answer_to_the_second(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, True)
    home.behave("status-500.slow-head-1s")
    other.behave("slow-first-2s")
    await ask(gateway, True)
    assert (len(home.requests), len(other.requests)) == (1, 1)


async def test_a_second_attempt_that_fails_leaves_the_answer_to_the_first(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, True)
    home.behave("slow-first-1s")
    other.behave("status-500")
    await ask(gateway, True)
    assert (len(home.requests), len(other.requests)) == (1, 1)


async def test_a_client_that_leaves_ends_both_attempts(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, True)
    for each in (home, other):
        each.behave("slow-first-20s")
    request = asyncio.ensure_future(ask(gateway, True))
    await eventually(lambda: bool(other.requests))
    request.cancel()
    await home.quiet()
    await other.quiet()
    assert [each.requests[-1].outcome for each in (home, other)] == ["client left"] * 2
    generations = await gateway.generations(ENOUGH + 1)
    assert generations[-1]["outcome"] == "cancelled"


async def test_an_answer_that_the_second_attempt_began_can_be_continued(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    home, other = await warm(gateway, engine, spare, True)
    home.behave("slow-first-20s.first-1")
    other.behave("cut-after-10")
    await ask(gateway, True)
    assert home.requests[-1].path == "/v1/completions"
    generations = await gateway.generations(ENOUGH + 1)
    assert generations[-1]["continuations"] == 1
    assert generations[-1]["usage"]["completion_tokens"] == 64


class HeldSlot:
    """A slot of which only the giving back is looked at."""

    released = 0

    def release(self) -> None:
        self.released += 1

    def record(self, outcome: object) -> None:
        pass


@pytest.mark.parametrize("steps", range(3))
async def test_a_hedge_that_is_called_off_gives_its_slot_back_however_far_it_came(steps: int):
    slot: Any = HeldSlot()
    abandoned = []

    async def contend(upstream: Any, slot: Any) -> Rival[None]:
        try:
            await asyncio.sleep(0)
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if steps < 2:
                raise  # else it has won in spite of that
        return Rival(lambda stay: asyncio.sleep(0), lambda: abandoned.append(True))

    async def first() -> None:
        hedge: Hedge[None] = Hedge(0.1, lambda: (cast(Any, None), slot), contend)
        hedge.late()
        for _ in range(steps):
            await asyncio.sleep(0)
        hedge.call_off()
        await asyncio.sleep(0.01)
        assert hedge.won is None

    await asyncio.create_task(first())
    assert slot.released == 1
    assert len(abandoned) == (steps >= 2)


async def test_nothing_is_hedged_before_it_is_known_what_late_is(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    for each in (engine, spare):
        each.behave("slow-first-500ms")
    await ask(gateway, True)
    assert len(engine.requests) + len(spare.requests) == 1
