"""A real answer that breaks off in one process goes on in another from the same tokens.

What an uninterrupted answer would have been cannot be known: a prefill over a prefix rounds
differently from the decode that it replaces. What can be told is that the second engine was
given exactly the prompt's and the answer's tokens, and that the client reads what came of it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio

from prime_inference import compose
from prime_inference.adapters.memory.catalog import MemoryCatalog
from prime_inference.engines.local.supervisor import LocalEngine
from tests.engines.local.wire_tap import WireTap, wire_tap
from tests.gateway.running import InOrder, begin_in_order

pytestmark = pytest.mark.asyncio(loop_scope="module")  # two engines and one gateway for all

CONTEXT_TOKENS = 1024
TOKENS = 12
QUESTION = [{"role": "user", "content": "Name three rivers of Europe."}]
ENDLESS = {"2": -100}  # a bias against the token that ends an answer


@pytest.fixture(autouse=True)
def first_engine_first(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_in_order(monkeypatch)


class Stage:
    """Two engines, taps on the way to both, and a gateway over them.

    Of each model but `m/kill` the first engine's wire breaks off: `m/K` after K events.
    """

    def __init__(
        self, engines: list[LocalEngine], taps: list[WireTap], client: httpx.AsyncClient
    ) -> None:
        self.engines = engines
        self.taps = taps
        self.client = client

    async def stream(self, path: str, **body: Any) -> tuple[str, list[Any], bool]:
        """Text, chunks, and whether the end was marked."""
        fields = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
        answer = await self.client.post(path, json={**fields, **body})
        lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: ")]
        done = lines[-1] == "[DONE]"
        chunks = [msgspec.json.decode(line) for line in lines if line != "[DONE]"]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(
            (c["delta"].get("content") or "") if "delta" in c else c["text"] for c in choices
        )
        return text, chunks, done

    async def ask_engine(self, path: str, body: Any) -> Any:
        return (await self.client.post(self.taps[1].engine_url + path, json=body)).json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("continuation")
    async with AsyncExitStack() as stack:
        engines = [LocalEngine(model_file, slots=1, context_tokens=CONTEXT_TOKENS) for _ in "12"]
        for engine in engines:
            await engine.start()
            stack.push_async_callback(engine.stop)
        roots = [engine.base_url.removesuffix("/v1") for engine in engines]
        taps = [await stack.enter_async_context(wire_tap(root)) for root in roots]
        options = compose.ServeOptions(folder / "state", folder / "cache")
        catalog = compose.local_catalog(options, engines[0], model_file, CONTEXT_TOKENS)
        (model,) = catalog.models()
        (served,) = catalog.deployments(model.id)
        cuts = {f"m/{k}": k for k in range(1, TOKENS)} | {"m/text": 5, "m/stop": 4, "m/logprobs": 3}
        firsts = {name: f"{taps[0].url}/cut-{k}/v1" for name, k in cuts.items()}
        firsts["m/kill"] = engines[0].base_url
        models = [replace(model, id=name) for name in firsts]
        deployments = [
            replace(served, id=f"{name}-{place}", model=name, base_url=url, datacenter=place)
            for name, first in firsts.items()
            for place, url in (("one", first), ("two", f"{taps[1].url}/v1"))
        ]
        listen = compose.ListenOptions(options.state_dir, port=0, control_port=0)
        catalog = MemoryCatalog(models, deployments)
        endpoint, _ = await stack.enter_async_context(
            compose.listening(catalog, listen, lambda: None, InOrder())
        )
        found = endpoint("m/1")
        client = httpx.AsyncClient(
            base_url=found.base_url,
            headers={"authorization": f"Bearer {found.api_key}"},
            timeout=60,
        )
        yield Stage(engines, taps, await stack.enter_async_context(client))


async def test_the_second_engine_is_given_exactly_the_tokens_so_far_wherever_the_first_dies(
    stage: Stage,
):
    template = await stage.ask_engine("/apply-template", {"messages": QUESTION})
    tokens = await stage.ask_engine("/tokenize", {
        "content": template["prompt"], "add_special": True, "parse_special": True,
    })  # fmt: skip
    prompt = tokens["tokens"]
    first, second = stage.taps
    for k in range(1, TOKENS):
        before = len(first.exchanges), len(second.exchanges)
        text, chunks, done = await stage.stream(
            "chat/completions", model=f"m/{k}", messages=QUESTION, max_tokens=TOKENS,
            logit_bias=ENDLESS,
        )  # fmt: skip
        (begun,) = first.exchanges[before[0] :]
        *_, resumed = second.exchanges[before[1] :]
        assert len(begun.ids) == k
        assert resumed.path == "/v1/completions"
        assert resumed.body["prompt"] == [*prompt, *begun.ids]
        assert resumed.body["max_tokens"] == TOKENS - k
        assert text == begun.text + resumed.text
        assert done
        finish = [c["finish_reason"] for chunk in chunks for c in chunk["choices"]]
        assert [each for each in finish if each] == ["length"]
        usage = chunks[-1]["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (len(prompt), TOKENS)
        assert all(c["logprobs"] is None for chunk in chunks for c in chunk["choices"])


async def test_a_completion_goes_on_from_its_tokens(stage: Stage):
    first, second = stage.taps
    text, _, done = await stage.stream(
        "completions", model="m/text", prompt="The longest river of Europe is", max_tokens=TOKENS,
        logit_bias=ENDLESS,
    )  # fmt: skip
    begun, resumed = first.exchanges[-1], second.exchanges[-1]
    (tokens,) = [e for e in second.exchanges[-2:] if e.path == "/tokenize"]
    assert tokens.body["content"] == "The longest river of Europe is"
    assert resumed.body["prompt"][-5:] == begun.ids
    assert text == begun.text + resumed.text
    assert done


async def test_with_stop_strings_the_text_so_far_is_what_goes_on(stage: Stage):
    """An engine holds back what could be a stop string: tokens would tell more than was sent."""
    first, second = stage.taps
    text, _, done = await stage.stream(
        "chat/completions", model="m/stop", messages=QUESTION, max_tokens=TOKENS,
        logit_bias=ENDLESS, stop=["Nowhere"],
    )  # fmt: skip
    begun, resumed = first.exchanges[-1], second.exchanges[-1]
    (tokens,) = [e for e in second.exchanges[-2:] if e.path == "/tokenize"]
    assert tokens.body["content"].endswith(begun.text)
    assert resumed.path == "/v1/completions"
    assert resumed.body["stop"] == ["Nowhere"]
    assert text == begun.text + resumed.text
    assert done


async def test_the_clients_own_logprobs_go_on(stage: Stage):
    _, chunks, done = await stage.stream(
        "chat/completions", model="m/logprobs", messages=QUESTION, max_tokens=6,
        logit_bias=ENDLESS, logprobs=True, top_logprobs=2,
    )  # fmt: skip
    named = [c["logprobs"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert [len(each["content"][0]["top_logprobs"]) for each in named] == [2] * 6
    assert all("logprob" in each["content"][0] for each in named)
    assert done


async def test_a_killed_process_costs_the_client_nothing_but_a_moment(stage: Stage):
    request = asyncio.ensure_future(
        stage.stream(
            "chat/completions", model="m/kill", messages=QUESTION, max_tokens=200,
            logit_bias=ENDLESS,
        )
    )  # fmt: skip
    slots = stage.engines[0].base_url.removesuffix("/v1") + "/slots"
    async with asyncio.timeout(30):
        while True:  # until it writes
            (slot,) = (await stage.client.get(slots)).json()
            if any(token.get("n_decoded", 0) > 5 for token in slot.get("next_token", [])):
                break
            await asyncio.sleep(0.02)
    pid = stage.engines[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    text, chunks, done = await request
    assert done
    assert chunks[-1]["usage"]["completion_tokens"] == 200
    assert text.endswith(stage.taps[1].exchanges[-1].text)
