"""The example, as it stands: two Dynamo datacenters behind our gateway, and what breaks."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from prime_inference.fleet.launcher.control import Command, ask

from .running import RunningFleet, running_fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "two-datacenters-dynamo.toml"
MODEL = "mock/tiny"
WORD_BYTES = 6  # the mocker's tokens are words like " t1234"; read again, each byte is a token
LONG = 400  # tokens: some three seconds

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]


class Reader:
    """A streamed answer of the gateway's, as it comes."""

    def __init__(self, fleet: RunningFleet, prompt: str, tokens: int) -> None:
        self._fleet = fleet
        self._prompt = prompt
        self._tokens = tokens
        self.prompt_tokens = 0
        self.begun = asyncio.Event()
        self.read = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """It must be whole: every token asked for, each once, and an end that is marked."""
        gateway = (await self._fleet.look())["gateway"]
        events: list[str] = []
        async with self._fleet.client.stream(
            "POST",
            f"{gateway['base_url']}/chat/completions",
            headers={"authorization": f"Bearer {gateway['api_key']}"},
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": self._prompt}],
                "max_tokens": self._tokens,
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        ) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    events.append(line[6:])
                if len(events) > 2:
                    self.begun.set()
        assert events[-1] == "[DONE]", events[-1]
        chunks: list[dict[str, Any]] = [json.loads(event) for event in events[:-1]]
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        assert len(text.split()) == self._tokens
        finishes = [choice["finish_reason"] for choice in choices]
        assert [finish for finish in finishes if finish] == ["length"]
        usage = chunks[-1]["usage"]
        assert usage["completion_tokens"] == self._tokens
        self.prompt_tokens = usage["prompt_tokens"]


async def whole(fleet: RunningFleet, prompt: str = "hello", tokens: int = 4) -> None:
    await Reader(fleet, prompt, tokens).read


async def being_written(fleet: RunningFleet, count: int, prompt: str, tokens: int) -> list[Reader]:
    """Answers of which all have begun."""
    readers = [Reader(fleet, f"{prompt} {i:02}", tokens) for i in range(count)]
    await asyncio.gather(*(reader.begun.wait() for reader in readers))
    return readers


async def all_whole(readers: list[Reader]) -> None:
    await asyncio.gather(*(reader.read for reader in readers))


async def both_serve(fleet: RunningFleet) -> None:
    """Return when the gateway sends requests to both datacenters."""
    await fleet.ready()
    name = "dynamo_frontend_requests_started_total"
    before = [await fleet.metric(each, name) for each in ("tiny-a", "tiny-b")]
    while True:
        await asyncio.gather(*(whole(fleet, f"both {i}") for i in range(6)))
        now = [await fleet.metric(each, name) for each in ("tiny-a", "tiny-b")]
        if all(new > old for new, old in zip(now, before, strict=True)):
            return


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fleet(
    tmp_path_factory: pytest.TempPathFactory, dynamo_python: str
) -> AsyncIterator[RunningFleet]:
    folder = tmp_path_factory.mktemp("state")
    async with running_fleet(EXAMPLE.read_text(), folder, dynamo_python) as fleet:
        yield fleet


async def test_later_turns_land_where_their_prefix_is_and_sessions_stay(fleet):
    """Asks a frontend itself: it names the workers it chose, which the gateway tells nobody."""
    url = f"{await fleet.frontend('tiny-a')}/chat/completions"
    rng = random.Random(1)
    for session in range(6):
        words = "".join(rng.choice("abcdefgh ") for _ in range(4000))
        messages = [{"role": "system", "content": words}]
        seen = []
        for turn in range(4):
            messages.append({"role": "user", "content": f"question {turn}"})
            body = {
                "model": MODEL,
                "messages": messages,
                "max_tokens": 8,
                "nvext": {"extra_fields": ["worker_id", "timing"]},
            }
            headers = {"x-dynamo-session-id": f"session-{session}"}
            answer = (await fleet.client.post(url, json=body, headers=headers)).json()
            seen.append(answer["nvext"])
            messages.append(
                {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            )
        hit_rates = [one["timing"]["kv_hit_rate"] for one in seen]
        assert hit_rates[0] < 0.1
        assert min(hit_rates[1:]) >= 0.9, hit_rates
        assert len({one["worker_id"]["prefill_worker_id"] for one in seen}) == 1
        assert len({one["worker_id"]["decode_worker_id"] for one in seen}) == 1
    status = await ask(fleet.folder, Command("caches"))
    report = {one["id"]: one["caches"] for one in status["deployments"]}["tiny-a"]
    assert 0.6 < report["hit_rate"] < 0.8  # three turns of four
    assert await fleet.gateway_metric("prime_fleet_prompt_tokens") >= report["prompt_tokens"]


async def test_the_gateway_serves_from_both_datacenters(fleet):
    await both_serve(fleet)


async def test_a_killed_decode_worker_costs_no_answer(fleet):
    """Dynamo migrates what it was writing to the other one."""
    readers = await being_written(fleet, 8, "long", LONG)
    os.kill((await fleet.pids())["tiny-a/decode-0"], signal.SIGKILL)
    await all_whole(readers)
    assert await fleet.metric("tiny-a", "dynamo_frontend_model_migration_total") > 0
    await fleet.ready()  # whole again: it was started anew


async def test_a_killed_prefill_worker_costs_no_answer(fleet):
    readers = [Reader(fleet, f"short {i}" * 50, 20) for i in range(16)]
    os.kill((await fleet.pids())["tiny-b/prefill-0"], signal.SIGKILL)
    await all_whole(readers)
    await fleet.ready()


async def test_a_frozen_frontend_costs_no_answer_and_is_replaced(fleet):
    """What it was writing goes on elsewhere, what waits there begins elsewhere."""
    await both_serve(fleet)
    continued = await fleet.gateway_metric("prime_continuations_total")
    writing = await being_written(fleet, 8, "freezing", LONG)
    before = (await fleet.pids())["tiny-b/frontend"]
    there = await fleet.metric("tiny-b", "dynamo_frontend_inflight_requests")
    os.kill(before, signal.SIGSTOP)
    frozen = time.monotonic()
    waiting = [Reader(fleet, f"waiting {i}", 4) for i in range(8)]
    await fleet.until("tiny-b", "failing")
    await asyncio.sleep(0.5)  # the gateway looks at the list four times a second
    for i in range(8):
        began = time.monotonic()
        await whole(fleet, f"while frozen {i}")
        print(f"answered in {time.monotonic() - began:.2f} s")
    await all_whole(waiting)
    print(f"what waited there was whole {time.monotonic() - frozen:.1f} s after the freeze")
    await all_whole(writing)
    print(f"what it was writing was whole {time.monotonic() - frozen:.1f} s after the freeze")
    assert there > 0
    assert await fleet.gateway_metric("prime_continuations_total") - continued == there
    await fleet.ready()
    assert (await fleet.pids())["tiny-b/frontend"] != before


async def test_a_drained_datacenter_gets_nothing_more_and_comes_back(fleet):
    readers = await being_written(fleet, 6, "draining", LONG)
    await ask(fleet.folder, Command("drain", deployment="tiny-a"))
    await all_whole(readers)
    await whole(fleet)
    await ask(fleet.folder, Command("restart", deployment="tiny-a"))
    status = await fleet.ready()
    assert all(one["state"] == "ready" for one in status["deployments"])


async def test_a_datacenter_killed_in_mid_answer_costs_no_answer(fleet):
    """The gateway has the other datacenter go on with what the dead one was writing.

    The mocker's words are random, but its frontend counts what it is given and what comes of it:
    each word that was written before the seam is read as its bytes, and not written again.
    """
    await both_serve(fleet)
    given, written = "input_sequence_tokens_sum", "output_sequence_tokens_sum"
    counts = [await fleet.metric("tiny-a", f"dynamo_frontend_{name}") for name in (given, written)]
    continued = await fleet.gateway_metric("prime_continuations_total")
    readers = await being_written(fleet, 16, "killed", LONG)
    there = await fleet.metric("tiny-b", "dynamo_frontend_inflight_requests")
    await fleet.kill("tiny-b")
    await all_whole(readers)
    assert 0 < there < 16
    assert await fleet.gateway_metric("prime_continuations_total") - continued == there
    given_now, written_now = [
        await fleet.metric("tiny-a", f"dynamo_frontend_{name}") - before
        for name, before in zip((given, written), counts, strict=True)
    ]
    before_seams = 16 * LONG - written_now  # words of the dead one
    assert before_seams >= 2 * there
    prompts = sum(reader.prompt_tokens for reader in readers)
    assert given_now == prompts + WORD_BYTES * before_seams
    print(f"{there:.0f} answers went on after {before_seams / there:.0f} tokens each")
    for i in range(4):
        await whole(fleet, f"after {i}")
    status = await fleet.ready()  # the launcher has brought it back
    assert all(one["state"] == "ready" for one in status["deployments"])
