"""Prefill and decode in processes apart: KV over NIXL, KV events to the router.

The example of the catalogue as it stands: two prefill workers, one decode worker.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.vllm.calls import MOST_TOKENS, TOOL, is_valid
from tests.vllm.fleet import TOKENS, Fleet, models_own, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "vllm-cpu.toml"
BLOCK_TOKENS = 32
TOKEN_BYTES = 2 * 2 * 64 * 4  # keys and values of two layers, 64 dimensions, float32

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fleet(tmp_path_factory, vllm_python) -> AsyncIterator[Fleet]:
    state_dir = tmp_path_factory.mktemp("state")
    async with running(EXAMPLE.read_text(), state_dir, vllm_python) as fleet:
        yield fleet


def letters(seed: int, count: int) -> str:
    rng = random.Random(seed)
    return "".join(rng.choice("abcdefgh ") for _ in range(count))


async def moved(fleet: Fleet) -> dict[str, float]:
    """What the decode worker says of where its prompts' KV came from."""
    source = "vllm:prompt_tokens_by_source_total"
    return {
        "computed": await fleet.metric("decode-0", source, 'source="local_compute"'),
        "pulled": await fleet.metric("decode-0", source, 'source="external_kv_transfer"'),
        "bytes": await fleet.metric("decode-0", "vllm:nixl_bytes_transferred_sum"),
        "failed": await fleet.metric("decode-0", "vllm:nixl_num_failed_transfers_total"),
    }


async def test_kv_that_was_computed_elsewhere_gives_the_models_own_answer(fleet, vllm_python):
    prompts = [letters(1, 700), letters(2, 2100)]  # the second is computed in three steps
    expected = await models_own(vllm_python, fleet.model_folder, prompts, TOKENS)
    assert len(set(expected)) == len(prompts)
    before = await moved(fleet)
    tokens = 0
    for prompt, own in zip(prompts, expected, strict=True):
        answer = await fleet.ask(
            [{"role": "user", "content": prompt}], max_tokens=TOKENS, temperature=0
        )
        assert answer["choices"][0]["message"]["content"] == own
        tokens += answer["usage"]["prompt_tokens"]
    after = await moved(fleet)
    assert after["pulled"] - before["pulled"] == tokens
    assert after["computed"] == after["failed"] == 0
    least = (tokens - len(prompts) * BLOCK_TOKENS) * TOKEN_BYTES
    assert (
        least
        < after["bytes"] - before["bytes"]
        < least + 2 * len(prompts) * BLOCK_TOKENS * TOKEN_BYTES
    )


async def test_later_turns_land_on_the_worker_that_has_their_prefix(fleet):
    """The router knows it from the events of vLLM's own cache."""
    sessions = [[{"role": "user", "content": letters(10 + session, 1500)}] for session in range(4)]
    first = await asyncio.gather(*(turn(fleet, messages) for messages in sessions))
    homes = [answer["nvext"]["worker_id"]["prefill_worker_id"] for answer in first]
    assert len(set(homes)) == 2, "the router had a choice and made none"
    for round_ in range(2):
        for messages, home in zip(sessions, homes, strict=True):
            messages.append({"role": "user", "content": f"question {round_}"})
            answer = await turn(fleet, messages)
            assert answer["nvext"]["worker_id"]["prefill_worker_id"] == home
            assert answer["nvext"]["timing"]["kv_hit_rate"] >= 0.9
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]  # as vLLM counted it
            assert cached >= 0.9 * usage["prompt_tokens"]
    stored = 'event_type="stored"', 'status="ok"'
    applied = await fleet.metric("frontend", "dynamo_component_kv_cache_events_applied", *stored)
    assert applied > 0


async def turn(fleet: Fleet, messages):
    answer = await fleet.ask_frontend(messages, max_tokens=8, temperature=0)
    messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
    return answer


async def test_a_call_that_must_come_is_one_here_too(fleet):
    """Both workers see the grammar: prefill writes the first token, decode the others."""
    answers = await asyncio.gather(
        *(
            fleet.ask(
                [{"role": "user", "content": f"Light {seed}, please."}],
                tools=[TOOL],
                tool_choice="required",
                parallel_tool_calls=False,
                max_tokens=MOST_TOKENS,
                temperature=1,
                seed=seed,
            )
            for seed in range(4)
        )
    )
    for answer in answers:
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert is_valid(call["function"]["arguments"])


async def test_the_fleet_tells_what_its_caches_and_transfers_do(fleet):
    messages = [{"role": "user", "content": letters(30, 1500)}]
    for _ in range(2):
        await turn(fleet, messages)
        messages.append({"role": "user", "content": "and then?"})
    caches = await fleet.caches()
    assert caches["cached_tokens"] > 0
    assert caches["transfer_seconds"] > 0
    assert caches["host_hit_rate"] is None  # there is no second tier


async def test_a_killed_prefill_worker_costs_no_answer(fleet):
    """The last test: the launcher starts another, for which nobody waits here."""
    pids = {one["name"]: one["pid"] for one in fleet.deployment["processes"]}

    async def answered(seed: int) -> None:
        began = time.monotonic()
        answer = await fleet.ask([{"role": "user", "content": letters(seed, 1500)}], max_tokens=8)
        print(f"answered after {time.monotonic() - began:.1f} s")
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        assert answer["choices"][0]["message"]["content"]

    asked = [asyncio.create_task(answered(seed)) for seed in range(40, 46)]
    await asyncio.sleep(0)  # they are asked
    os.killpg(pids["prefill-0"], signal.SIGKILL)
    asked += [asyncio.create_task(answered(seed)) for seed in range(46, 48)]
    await asyncio.gather(*asked)
