"""After the first content has been sent, another engine goes on with the same answer.

The mock engine's text is known beforehand, so a seam can be told by comparing.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prime_inference.domain.models import Model
from prime_inference.engines.mock import MockEngine, expected_text, expected_usage
from prime_inference.gateway.clocks import ClockLimits

from .conftest import StartGateway
from .running import (
    CONTEXT_TOKENS,
    MESSAGES,
    RunningGateway,
    Streamed,
    deployment,
    eventually,
    running,
)
from .scripted_engine import DONE, delta, event, scripted

SHORT = ClockLimits(connect=1, first_token=2, idle=0.3, tail=0.3, total=10)
TOKENS = 30

Pairs = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture
def pairs(tmp_path: Path, state_template: Path, engine: MockEngine, spare: MockEngine) -> Pairs:
    """A gateway with a model `m/BEHAVIOUR` for each behaviour: of its two deployments the first
    one behaves like this, so each model has a breaker and a budget that nothing has used."""

    @asynccontextmanager
    async def start(
        behaviours: Sequence[str], *, then: str = "plain", revisions: Sequence[str] = ("", "")
    ) -> AsyncIterator[RunningGateway]:
        folder = tmp_path / "state"
        shutil.copytree(state_template, folder)
        names = [f"m/{behaviour}" for behaviour in behaviours]
        models = [Model(name, "r1", 1, CONTEXT_TOKENS, CONTEXT_TOKENS) for name in names]
        deployments = [
            deployment(
                number,
                engines.base_url,
                id=f"{name}-{number}",
                model=name,
                revision=revisions[number],
                upstream_model="mock/" + (name.removeprefix("m/") if number == 0 else then),
            )
            for name in names
            for number, engines in enumerate((engine, spare))
        ]
        async with running(folder, deployments, clocks=SHORT, catalog_models=models) as gateway:
            yield gateway

    return start


async def stream(gateway: RunningGateway, behaviour: str, **fields: Any) -> Streamed:
    options = {"stream_options": {"include_usage": True}, **fields}
    return await gateway.stream(model=f"m/{behaviour}", **options)


def check_seamless(streamed: Streamed, limit: int | None = None, tokens: int = TOKENS) -> None:
    """It is the uninterrupted answer: text, role, ids, finish reason, usage, end."""
    assert streamed.error is None
    assert streamed.done
    assert streamed.text() == expected_text(MESSAGES, limit, length=tokens)
    assert [c["delta"].get("role") for c in streamed.choices].count("assistant") == 1
    assert len({chunk["id"] for chunk in streamed.chunks}) == 1
    assert {chunk["object"] for chunk in streamed.chunks} == {"chat.completion.chunk"}
    finishes = [finish for finish in streamed.finish_reasons() if finish]
    assert finishes == ["length" if limit is not None and limit < tokens else "stop"]
    usage = streamed.chunks[-1]["usage"]
    expected = expected_usage(MESSAGES, limit, length=tokens)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == expected


KINDS = [
    "cut-after-{k}",
    "reset-after-{k}",
    "end-after-{k}",
    "error-after-{k}",
    "malformed-at-{n}",
    "huge-at-{n}",
    "cut-after-{k}.crlf",
    "end-after-{k}.chunks-7",
    "cut-after-{k}.no-usage",
]


@pytest.mark.parametrize("kind", KINDS)
async def test_wherever_an_engine_dies_the_client_reads_the_uninterrupted_answer(
    pairs: Pairs, engine: MockEngine, spare: MockEngine, kind: str
):
    ks = range(1, TOKENS + 1) if "huge" not in kind else (1, 15, 29)
    behaviours = [f"{kind}.answer-{TOKENS}".format(k=k, n=k + 1) for k in ks]
    if "at-{n}" in kind:
        behaviours = behaviours[:-1] if len(ks) == TOKENS else behaviours
    async with pairs(behaviours, then=f"answer-{TOKENS}") as gateway:
        for k, behaviour in zip(ks, behaviours, strict=False):
            streamed = await stream(gateway, behaviour)
            if "no-usage" in kind:
                assert streamed.text() == expected_text(MESSAGES, length=TOKENS)
                assert streamed.done
            else:
                check_seamless(streamed)
            assert engine.requests[-1].behaviour == behaviour
            # the second one is given exactly the prompt's and the answer's tokens
            assert spare.requests[-1].path == "/v1/completions"
            assert spare.requests[-1].json["prompt"][-1] != 3
            assert len(spare.requests[-1].json["prompt"]) == expected_usage(MESSAGES)[0] + k


async def test_a_stalled_engine_is_left_when_the_idle_clock_runs_out(
    pairs: Pairs, engine: MockEngine
):
    behaviours = [f"stall-after-{k}.answer-{TOKENS}" for k in (1, 17, 30)]
    async with pairs(behaviours, then=f"answer-{TOKENS}") as gateway:
        for behaviour in behaviours:
            check_seamless(await stream(gateway, behaviour))
            assert engine.requests[-1].outcome == "client left"


async def test_an_answer_may_move_as_often_as_it_comes_further(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    for each in (engine, spare):
        each.behave(f"cut-after-4.answer-{TOKENS}")
    streamed = await gateway.stream(stream_options={"include_usage": True})
    check_seamless(streamed)
    assert len(engine.requests) + len(spare.requests) == 8  # seven times four, and the rest


async def test_an_answer_that_was_cut_off_has_the_slot_that_this_freed_before_a_newcomer(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, slots=1)
    engine.behave(f"cut-after-4.pace-20ms.answer-{TOKENS}.first-1")
    spare.behave("pace-50ms.answer-40")
    cut = asyncio.ensure_future(gateway.stream(stream_options={"include_usage": True}))
    await eventually(lambda: len(engine.requests) == 1)
    other = asyncio.ensure_future(gateway.chat())
    await eventually(lambda: len(spare.requests) == 1)
    engine.behave(f"pace-20ms.answer-{TOKENS}")  # what goes on is not cut
    await eventually(lambda: engine.requests[0].outcome == "cut")
    newcomer = await gateway.chat()
    check_seamless(await cut)
    assert engine.requests[1].path == "/v1/completions"  # by the tokens so far
    assert newcomer.status_code in {200, 503}  # it waited, or was told when to come
    assert (await other).status_code == 200


@pytest.mark.parametrize("limit", [1, 4, 5, 6, 29, 30, 31])
async def test_what_was_generated_counts_against_the_limit(
    pairs: Pairs, spare: MockEngine, limit: int
):
    behaviour = f"cut-after-5.answer-{TOKENS}"
    async with pairs([behaviour], then=f"answer-{TOKENS}") as gateway:
        check_seamless(await stream(gateway, behaviour, max_tokens=limit), limit)
    if limit <= 5:
        assert spare.requests == []  # only the word of the answer's end was lost
    else:
        assert spare.requests[-1].json["max_tokens"] == limit - 5


async def test_an_engine_that_takes_no_ids_goes_on_by_text(pairs: Pairs, spare: MockEngine):
    behaviours = [f"cut-after-{k}.answer-{TOKENS}" for k in range(1, TOKENS + 1)]
    async with pairs(behaviours, then=f"answer-{TOKENS}") as gateway:
        for k, behaviour in enumerate(behaviours, 1):
            check_seamless(await stream(gateway, behaviour, tools=[TOOL]))
            asked = spare.requests[-1]
            assert asked.path == "/v1/chat/completions"
            begun = {"role": "assistant", "content": expected_text(MESSAGES, k, length=TOKENS)}
            assert asked.json["messages"] == [*MESSAGES, begun]
            assert asked.json["continue_final_message"] is True
            assert asked.json["add_generation_prompt"] is False


async def test_an_engine_that_refuses_prefill_goes_on_by_token_ids(pairs: Pairs):
    behaviour = "s08"
    async with pairs([behaviour], then="s14.answer-60") as gateway:
        check_seamless(await stream(gateway, behaviour), tokens=60)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"enum": ["one two three four five six"]}},
}

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "tool_choice": {"tools": [TOOL], "tool_choice": "required"},
    "response_format": {"response_format": SCHEMA},
    "several_choices": {"n": 2},
}


@pytest.mark.parametrize("obstacle", IMPOSSIBLE)
async def test_an_answer_that_cannot_go_on_ends_with_one_error_at_once(
    pairs: Pairs, spare: MockEngine, obstacle: str
):
    behaviour = "cut-after-2"
    async with pairs([behaviour]) as gateway:
        streamed = await stream(gateway, behaviour, **IMPOSSIBLE[obstacle])
    assert streamed.error is not None
    assert streamed.error["code"] == "upstream_cut"
    assert streamed.error["metadata"]["not_continued"] == obstacle
    assert not streamed.done
    assert spare.requests == []


async def test_tool_calls_begun_by_choice_are_not_continued(pairs: Pairs, spare: MockEngine):
    behaviour = "calls-1.cut-after-1"
    async with pairs([behaviour]) as gateway:
        streamed = await stream(gateway, behaviour, tools=[TOOL])
    assert streamed.error is not None
    assert streamed.error["metadata"]["not_continued"] == "tool_call"
    assert spare.requests == []


async def test_another_revision_does_not_go_on(pairs: Pairs, spare: MockEngine):
    behaviour = "cut-after-3"
    async with pairs([behaviour], revisions=("", "r2")) as gateway:
        streamed = await stream(gateway, behaviour)
    assert streamed.error is not None
    assert streamed.text() == expected_text(MESSAGES, 3)
    assert spare.requests == []


async def test_the_revision_of_a_deployment_counts_before_that_of_its_model(pairs: Pairs):
    behaviour = f"cut-after-3.answer-{TOKENS}"
    async with pairs([behaviour], then=f"answer-{TOKENS}", revisions=("r2", "r2")) as gateway:
        check_seamless(await stream(gateway, behaviour))


@pytest.mark.parametrize("prompt", ["Once upon a time", [40, 41, 42]], ids=["text", "ids"])
async def test_completions_go_on_too(pairs: Pairs, spare: MockEngine, prompt: str | list[int]):
    behaviours = [f"cut-after-{k}.answer-{TOKENS}" for k in (1, 15, 16, 29)]
    async with pairs(behaviours, then=f"answer-{TOKENS}") as gateway:
        for behaviour in behaviours:
            streamed = await gateway.stream(
                "/completions", model=f"m/{behaviour}", prompt=prompt, max_tokens=20
            )
            assert streamed.text() == expected_text(prompt, 20, length=TOKENS)
            assert streamed.done


async def test_a_seed_moves_on_with_the_answer(pairs: Pairs, spare: MockEngine):
    behaviour = f"cut-after-7.answer-{TOKENS}"
    async with pairs([behaviour], then=f"answer-{TOKENS}") as gateway:
        check_seamless(await stream(gateway, behaviour, seed=40))
    assert spare.requests[-1].json["seed"] == 47


async def test_logprobs_are_those_of_the_engine_that_wrote_the_token(
    pairs: Pairs, engine: MockEngine
):
    behaviour = f"cut-after-7.answer-{TOKENS}"
    async with pairs([behaviour, f"answer-{TOKENS}"], then=f"answer-{TOKENS}") as gateway:
        fields = {"logprobs": True, "top_logprobs": 2}
        broken = await stream(gateway, behaviour, **fields)
        whole = await stream(gateway, f"answer-{TOKENS}", **fields)
    check_seamless(broken)
    assert [c["logprobs"] for c in broken.choices] == [c["logprobs"] for c in whole.choices]


async def test_no_token_ids_are_asked_for_where_nobody_could_go_on(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine)
    await gateway.stream()
    assert "return_token_ids" not in engine.requests[-1].json


async def test_the_accounts_name_one_generation(pairs: Pairs):
    behaviour = f"cut-after-7.answer-{TOKENS}"
    async with pairs([behaviour], then=f"answer-{TOKENS}") as gateway:
        await stream(gateway, behaviour)
        (generation,) = await gateway.generations(1)
        assert await gateway.metric("prime_continuations_total", model=f"m/{behaviour}") == 1
    assert generation["outcome"] == "complete"
    assert generation["deployment"] == f"m/{behaviour}-1"
    assert generation["continuations"] == 1
    usage = generation["usage"]
    expected = expected_usage(MESSAGES, length=TOKENS)
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == expected


async def test_a_stop_string_that_straddles_the_seam_ends_the_answer(start_gateway: StartGateway):
    async with (
        scripted(delta(content="one"), delta(content=" tw")) as first,
        scripted(delta(content="o"), delta(content=" three"), delta("stop"), DONE) as second,
    ):
        gateway = await start_gateway(first.base_url, second.base_url)
        streamed = await gateway.stream(stop=["two"])
    assert streamed.text() == "one tw"  # what was sent cannot be taken back
    assert [finish for finish in streamed.finish_reasons() if finish] == ["stop"]
    assert streamed.done
    assert second.bodies[0]["messages"][-1] == {"role": "assistant", "content": "one tw"}


@pytest.mark.parametrize(
    "sent",
    [
        [delta(reasoning_content="hm")],
        [delta(reasoning_content="hm"), delta(content="so")],  # its tokens are not known
        [delta(content="so"), delta(refusal="no")],
    ],
    ids=["thinking", "after thinking", "refusing"],
)
async def test_what_a_template_would_leave_out_is_not_continued_by_text(
    start_gateway: StartGateway, sent: list[bytes]
):
    async with scripted(*sent) as first, scripted(delta(content="?"), DONE) as second:
        gateway = await start_gateway(first.base_url, second.base_url)
        streamed = await gateway.stream()
    assert streamed.error is not None
    assert streamed.error["code"] == "upstream_cut"
    assert second.bodies == []


async def test_an_answer_that_has_thought_goes_on_from_its_tokens(start_gateway: StartGateway):
    ids = [event({"choices": [], "prompt_token_ids": [1, 2]})]
    thought = {"index": 0, "delta": {"reasoning_content": "hm"}, "token_ids": [3]}
    said = {"index": 0, "delta": {"content": "so"}, "token_ids": [4, 5]}
    begun = [*ids, event({"choices": [thought]}), event({"choices": [said]})]
    more = {"index": 0, "text": " it is", "finish_reason": None, "token_ids": [6, 7]}
    end = {"index": 0, "text": "", "finish_reason": "stop"}
    async with (
        scripted(*begun) as first,
        scripted(event({"choices": [more]}), event({"choices": [end]}), DONE) as second,
    ):
        gateway = await start_gateway(first.base_url, second.base_url)
        streamed = await gateway.stream()
    assert streamed.text() == "so it is"
    assert streamed.done
    assert second.bodies[0]["prompt"] == [1, 2, 3, 4, 5]
    assert second.bodies[0]["max_tokens"] == CONTEXT_TOKENS - 5


async def test_an_engine_of_unknown_make_takes_up_no_chat(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    """It might begin a new answer, and the client would read two."""
    gateway = await start_gateway(engine, spare, kinds=["openai", "openai"])
    engine.behave("cut-after-3")
    streamed = await gateway.stream()
    assert streamed.error is not None
    assert spare.requests == []


async def test_a_prompt_too_long_to_name_its_tokens_goes_on_by_text(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare)
    engine.behave(f"cut-after-3.answer-{TOKENS}")
    spare.behave(f"answer-{TOKENS}")
    messages = [{"role": "user", "content": "x" * 70_000}]
    streamed = await gateway.stream(messages=messages)
    assert streamed.text() == expected_text(messages, length=TOKENS)
    assert "return_token_ids" not in engine.requests[-1].json
    assert spare.requests[-1].path == "/v1/chat/completions"


async def test_the_total_clock_ends_an_answer_wherever_it_has_moved(
    start_gateway: StartGateway, engine: MockEngine, spare: MockEngine
):
    gateway = await start_gateway(engine, spare, clocks=replace(SHORT, total=0.6))
    engine.behave("cut-after-5.pace-20ms.answer-500")
    spare.behave("pace-20ms.answer-500")
    streamed = await gateway.stream()
    assert streamed.error is not None
    assert streamed.error["metadata"]["clock"] == "total"
    assert streamed.error["metadata"]["not_continued"] == "total"
    assert (len(engine.requests), len(spare.requests)) == (1, 1)
