"""An answer of a real model moves from one Dynamo datacenter to another, and stays whole.

Two datacenters, each a Dynamo frontend and our worker around llama.cpp; a gateway, with a tap on
its wire to each frontend. What an uninterrupted answer would have been cannot be known (a prefill
rounds differently from the decode that it replaces). What can be told is what the second frontend
was given, what it made of it, and that the client reads what came of that.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import pytest_asyncio

from prime_inference import compose
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.compose_options import ENGINE_PARAMETERS
from prime_inference.domain.models import Deployment, Model
from tests.engines.local.wire_tap import Exchange, WireTap, wire_tap
from tests.gateway.running import InOrder, begin_in_order

from .running import RunningFleet, running_fleet

MODEL = "huggingfacetb/smollm2-135m-instruct"
FLEET = 'name = "two-smollm2"\n' + "".join(
    f'[[datacenter]]\nid = "dc-{x}"\n'
    f'[[deployment]]\nid = "smol-{x}"\ndatacenter = "dc-{x}"\nspec = "smollm2-135m"\n'
    for x in "ab"
)
QUESTION = [{"role": "user", "content": "Write a list of ten animals, one on each line."}]
STORY = [{"role": "user", "content": "Write a long story about a river and a village."}]
TOKENS = 16
PLACES = range(1, TOKENS, 2)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def first_datacenter_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_in_order(monkeypatch)


@dataclass
class Stage:
    """`m/K`: the wire to the first datacenter breaks after K events. `m/kill`: it does not."""

    fleet: RunningFleet
    taps: list[WireTap]
    client: httpx.AsyncClient

    async def formatted(self, body: dict[str, Any]) -> str:
        """What the second datacenter's frontend makes of a request: the model's input."""
        asked = {"stream": True, "max_tokens": 1, "nvext": {"annotations": ["formatted_prompt"]}}
        url = f"{self.taps[1].engine_url}/v1/chat/completions"
        answer = await self.fleet.client.post(url, json=body | {"model": MODEL} | asked)
        assert answer.status_code == 200, answer.text
        _, _, after = answer.text.partition("event: formatted_prompt\n: ")
        return str(json.loads(after.partition("\n")[0]))

    async def resumed_after(self, begun: Exchange, resumed: Exchange) -> str:
        """Check what the second datacenter was given after what came of `begun`; the answer."""
        said = begun.text
        assert resumed.path == "/v1/chat/completions"
        asked = begun.body["messages"]
        assert resumed.body["messages"][:-1] == asked
        opened = resumed.body["messages"][-1]
        assert opened["role"] == "assistant"
        assert opened["content"] == said.rstrip()
        assert await self.formatted(resumed.body) == (
            await self.formatted({"messages": asked}) + said.rstrip()
        )
        came = [event["usage"]["completion_tokens"] for event in begun.events if event["choices"]]
        assert resumed.body["max_tokens"] == begun.body["max_tokens"] - came[-1]
        more = resumed.text
        for space in said[len(said.rstrip()) :]:  # it may write again what it was not given
            if not more.startswith(space):
                break
            more = more.removeprefix(space)
        return said + more


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(
    tmp_path_factory: pytest.TempPathFactory, dynamo_python: str
) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("continuation")
    async with AsyncExitStack() as stack:
        fleet = await stack.enter_async_context(running_fleet(FLEET, folder, dynamo_python))
        roots = [(await fleet.frontend(f"smol-{x}")).removesuffix("/v1") for x in "ab"]
        taps = [await stack.enter_async_context(wire_tap(root)) for root in roots]
        firsts = {f"m/{k}": f"{taps[0].url}/cut-{k}/v1" for k in PLACES}
        firsts["m/kill"] = f"{taps[0].url}/v1"
        models = [Model(name, "q4_1", 1, 2048, 2048) for name in firsts]
        deployments = [
            Deployment(
                id=f"{name}-{place}", model=name, datacenter=place, base_url=url, engine="dynamo",
                slots=8, upstream_model=MODEL, parameters=ENGINE_PARAMETERS["dynamo"],
                routes=frozenset({"chat/completions"}),
            )
            for name, first in firsts.items()
            for place, url in (("dc-a", first), ("dc-b", f"{taps[1].url}/v1"))
        ]  # fmt: skip
        options = compose.ListenOptions(folder / "gateway", port=0, control_port=0)
        catalog = MemoryCatalog(models, deployments)
        endpoint, _ = await stack.enter_async_context(
            compose.listening(catalog, options, lambda: None, InOrder())
        )
        found = endpoint("m/1")
        client = httpx.AsyncClient(
            base_url=found.base_url,
            headers={"authorization": f"Bearer {found.api_key}"},
            timeout=60,
        )
        yield Stage(fleet, taps, await stack.enter_async_context(client))


def asking(model: str, messages: list[dict[str, str]], max_tokens: int) -> dict[str, Any]:
    return {
        "model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip


def read(events: list[str]) -> tuple[str, dict[str, Any], str]:
    """Text, usage and finish reason of a stream, which must be whole."""
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert all("error" not in chunk for chunk in chunks)
    finishes = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    (finish,) = [each for each in finishes if each]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert [delta["role"] for delta in deltas if "role" in delta] == ["assistant"]
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, chunks[-1]["usage"], finish


async def test_the_second_frontend_is_given_the_prompt_and_the_text_so_far_wherever_it_breaks(
    stage: Stage,
):
    first, second = stage.taps
    spaces = 0
    for k in PLACES:
        before = len(first.exchanges), len(second.exchanges)
        answer = await stage.client.post(
            "chat/completions", json=asking(f"m/{k}", QUESTION, TOKENS)
        )
        events = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
        text, usage, finish = read(events)
        (begun,), (resumed,) = first.exchanges[before[0] :], second.exchanges[before[1] :]
        assert text == await stage.resumed_after(begun, resumed)
        spaces += begun.text != begun.text.rstrip()
        assert finish == "length"
        assert TOKENS - 1 <= usage["completion_tokens"] <= TOKENS  # a token of space twice
    print(f"{spaces} of {len(PLACES)} seams after white space")


async def test_a_datacenter_killed_in_mid_answer_costs_the_client_nothing(stage: Stage):
    first, second = stage.taps
    before = len(second.exchanges)
    events: list[str] = []
    asked = asking("m/kill", STORY, 120)  # long enough to be killed in the middle
    async with stage.client.stream("POST", "chat/completions", json=asked) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events.append(line[6:])
                if len(events) == 4:
                    await stage.fleet.kill("smol-a")
    text, _, _ = read(events)
    begun, (resumed,) = first.exchanges[-1], second.exchanges[before:]
    assert text == await stage.resumed_after(begun, resumed)
