"""One vLLM worker under Dynamo, behind our gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.vllm.calls import MOST_TOKENS, PARAMETERS, TOOL, is_valid
from tests.vllm.fleet import TOKENS, Fleet, models_own, running

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

FLEET = """
name = "one-worker"
datacenter = [{ id = "dc-a" }]

[[deployment]]
id = "alone"
datacenter = "dc-a"
spec = "alone.toml"
"""

SPEC = """
engine = "vllm"

[model]
id = "random/bytes"
revision = "random-1"
architecture = "bytes"
source = "bytes"
context_tokens = 8192

[hardware]
gpu = "cpu"

[topology.workers]
tokens_per_step = 1024
sequences = 8

[kv]
block_tokens = 32
memory_fraction = 0.02

[tools]
call_parser = "hermes"
structural_tags = true

[limits]
slots = 8
"""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def fleet(tmp_path_factory, vllm_python) -> AsyncIterator[Fleet]:
    state_dir = tmp_path_factory.mktemp("state")
    (state_dir / "alone.toml").write_text(SPEC)
    async with running(FLEET, state_dir, vllm_python) as fleet:
        yield fleet


async def test_the_answer_is_the_models_own(fleet, vllm_python):
    prompts = ["Hello.", "What is the capital of France?", "abc " * 550]  # the last in three steps
    expected = await models_own(vllm_python, fleet.model_folder, prompts, TOKENS)
    assert len(set(expected)) == len(prompts)  # it hears what it is asked
    for prompt, own in zip(prompts, expected, strict=True):
        answer = await fleet.ask(
            [{"role": "user", "content": prompt}], max_tokens=TOKENS, temperature=0
        )
        assert answer["choices"][0]["message"]["content"] == own


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "set_light"}}]
)
async def test_a_call_that_must_come_is_one_whatever_the_model_would_write(fleet, choice):
    answers = await asyncio.gather(
        *(
            fleet.ask(
                [{"role": "user", "content": f"Light {seed}, please."}],
                tools=[TOOL],
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=MOST_TOKENS,
                temperature=1,
                seed=seed,
            )
            for seed in range(6)
        )
    )
    for answer in answers:
        (chosen,) = answer["choices"]
        (call,) = chosen["message"]["tool_calls"]
        assert call["function"]["name"] == "set_light"
        assert is_valid(call["function"]["arguments"])
        assert chosen["finish_reason"] == ("tool_calls" if choice == "required" else "stop")


async def test_without_a_grammar_the_same_model_writes_no_call(fleet):
    """So that the test above says something."""
    answer = await fleet.ask(
        [{"role": "user", "content": "Light 0, please."}], max_tokens=100, temperature=1, seed=0
    )
    assert "tool_calls" not in answer["choices"][0]["message"]


async def test_a_schema_for_the_answer_is_enforced(fleet):
    schema = {"name": "light", "schema": PARAMETERS, "strict": True}
    answer = await fleet.ask(
        [{"role": "user", "content": "Which light?"}],
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=MOST_TOKENS,
        temperature=1,
        seed=1,
    )
    assert is_valid(answer["choices"][0]["message"]["content"])


async def test_the_next_turn_finds_its_prefix(fleet):
    messages = [{"role": "user", "content": "x".join(map(str, range(400)))}]
    first = await fleet.ask(messages, max_tokens=8, temperature=0)
    messages += [first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    usage = (await fleet.ask(messages, max_tokens=8, temperature=0))["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 0.9 * first["usage"]["prompt_tokens"]
