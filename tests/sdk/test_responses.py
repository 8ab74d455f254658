"""OpenAI's own Python SDK on `/responses`, pointed at the gateway and otherwise unchanged."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from prime_inference.engines.mock import expected_text, expected_usage
from tests.gateway.processes import Processes
from tests.gateway.running import MODEL
from tests.wire.responses.judge import judge

ASKED = "Tell me about a river"
MESSAGES = [{"role": "user", "content": ASKED}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {
        "type": "function",
        "name": "weather",
        "description": "The weather in a city",
        "parameters": PARAMETERS,
        "strict": True,
    }
]


class City(BaseModel):
    name: str
    people: int


def test_a_plain_answer(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=ASKED)
    assert response.id.startswith("resp_")
    assert response.status == "completed"
    assert response.model == MODEL
    assert response.output_text == expected_text(MESSAGES)
    prompt, completion = expected_usage(MESSAGES)
    assert response.usage is not None
    assert response.usage.input_tokens == prompt
    assert response.usage.output_tokens == completion
    assert response.usage.total_tokens == prompt + completion


def test_the_flex_tier_is_told_whole_and_in_every_state_of_a_stream(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=ASKED, service_tier="flex")
    assert (response.service_tier, response.output_text) == ("flex", expected_text(MESSAGES))
    with client.responses.stream(model=MODEL, input=ASKED, service_tier="flex") as stream:
        tiers = {
            event.response.service_tier
            for event in stream
            if event.type in ("response.created", "response.in_progress", "response.completed")
        }
    assert tiers == {"flex"}


def test_the_limit_leaves_a_response_incomplete(client: openai.OpenAI):
    response = client.responses.create(model=MODEL, input=ASKED, max_output_tokens=9)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output_text == expected_text(MESSAGES, 9)


def test_instructions_and_roles_become_messages(client: openai.OpenAI, processes: Processes):
    client.responses.create(
        model=MODEL,
        instructions="Be brief.",
        input=[
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": [{"type": "input_text", "text": ASKED}]},
        ],
    )
    assert processes.requests()[-1]["body"]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": ASKED}]},
    ]


def test_a_stream_ends_with_the_whole_response(client: openai.OpenAI):
    events = list(client.responses.create(model=MODEL, input=ASKED, stream=True))
    final = judge([(event.type, event.to_dict(mode="json")) for event in events])
    assert final["status"] == "completed"
    assert final["output"][0]["content"][0]["text"] == expected_text(MESSAGES)
    assert client.responses.retrieve(final["id"]).output_text == expected_text(MESSAGES)


def test_the_sdks_own_accumulation_of_a_stream(client: openai.OpenAI):
    with client.responses.stream(model=MODEL, input=ASKED) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        response = stream.get_final_response()
    assert "".join(deltas) == response.output_text == expected_text(MESSAGES)
    assert response.usage is not None
    assert response.usage.output_tokens == 64


async def test_the_asynchronous_client(async_client: openai.AsyncOpenAI):
    async with async_client.responses.stream(model=MODEL, input=ASKED) as stream:
        response = await stream.get_final_response()
    assert response.output_text == expected_text(MESSAGES)


def test_the_raw_response_has_our_ids(client: openai.OpenAI):
    raw = client.responses.with_raw_response.create(model=MODEL, input=ASKED)
    response = raw.parse()
    assert response.id == raw.headers["x-generation-id"]
    assert response._request_id == raw.headers["x-request-id"]


@pytest.mark.parametrize("stream", [False, True])
def test_parse_gives_an_object_of_the_class(
    client: openai.OpenAI, processes: Processes, stream: bool
):
    if stream:
        with client.responses.stream(model=MODEL, input=ASKED, text_format=City) as events:
            response = events.get_final_response()
    else:
        response = client.responses.parse(model=MODEL, input=ASKED, text_format=City)
    assert isinstance(response.output_parsed, City)
    sent = processes.requests()[-1]["body"]["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["strict"] is True
    assert set(sent["json_schema"]["schema"]["properties"]) == {"name", "people"}


# -- conversations


def test_a_response_is_gone_on_from_by_its_id(client: openai.OpenAI, processes: Processes):
    first = client.responses.create(model=MODEL, input=ASKED, instructions="Be brief.")
    second = client.responses.create(model=MODEL, input="More", previous_response_id=first.id)
    third = client.responses.create(model=MODEL, input="And?", previous_response_id=second.id)
    assert third.previous_response_id == second.id
    assert processes.requests()[-1]["body"]["messages"] == [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "And?"},
    ]


def test_output_can_be_handed_back_as_input(client: openai.OpenAI, processes: Processes):
    first = client.responses.create(model=MODEL, input=ASKED, store=False)
    said: Any = [
        {"role": "user", "content": ASKED},
        *first.output,
        {"role": "user", "content": "?"},
    ]
    client.responses.create(model=MODEL, input=said, store=False)
    assert processes.requests()[-1]["body"]["messages"] == [
        {"role": "user", "content": ASKED},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "?"},
    ]


def test_a_stored_response_can_be_read_and_deleted(client: openai.OpenAI):
    made = client.responses.create(model=MODEL, input=ASKED, metadata={"run": "7"})
    found = client.responses.retrieve(made.id)
    assert found == made
    assert found.metadata == {"run": "7"}
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message"
    assert item.to_dict()["content"] == [{"type": "input_text", "text": ASKED}]
    client.responses.delete(made.id)
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            ask(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input="More", previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


def said(number: int) -> Any:
    """One of many input items, of all kinds."""
    match number % 4:
        case 0:
            return {"role": "user", "content": f"item {number}"}
        case 1:
            return {
                "type": "function_call",
                "call_id": f"c{number}",
                "name": "f",
                "arguments": "{}",
            }
        case 2:
            return {"type": "function_call_output", "call_id": f"c{number - 1}", "output": "yes"}
        case _:
            return {"role": "assistant", "content": f"item {number}", "id": f"msg_{number}"}


def test_input_items_come_in_pages_latest_first(client: openai.OpenAI):
    asked = [said(number) for number in range(47)]
    made = client.responses.create(model=MODEL, input=asked)
    page = client.responses.input_items.list(made.id)
    assert (len(page.data), page.has_more) == (20, True)  # OpenAI's default
    assert page.to_dict()["first_id"] == page.data[0].id
    assert page.to_dict()["last_id"] == page.data[-1].id
    items = list(page)  # the SDK fetches the other pages
    assert len({item.id for item in items}) == len(items) == 47
    oldest_first = list(client.responses.input_items.list(made.id, order="asc", limit=7))
    assert oldest_first == items[::-1]
    kinds = [item.type for item in oldest_first[:4]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert oldest_first[3].id == "msg_3"


@pytest.mark.parametrize(("limit", "sizes"), [(1, [1, 1, 1]), (2, [2, 1]), (3, [3]), (100, [3])])
def test_the_last_page_says_that_there_is_no_more(
    client: openai.OpenAI, limit: int, sizes: list[int]
):
    made = client.responses.create(model=MODEL, input=[said(number) for number in (0, 3, 4)])
    pages = list(client.responses.input_items.list(made.id, limit=limit).iter_pages())
    assert [len(page.data) for page in pages] == sizes
    assert [page.has_more for page in pages] == [True] * (len(sizes) - 1) + [False]
    last = pages[-1].data[-1].id
    behind = client.responses.input_items.list(
        made.id, after=last, include=["reasoning.encrypted_content"]
    )
    assert behind.to_dict() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_the_asynchronous_client_fetches_all_pages(async_client: openai.AsyncOpenAI):
    made = await async_client.responses.create(model=MODEL, input=[said(n) for n in range(5)])
    pages = async_client.responses.input_items.list(made.id, limit=2, order="asc")
    assert len([item.id async for item in pages]) == 5


def test_items_that_were_sent_with_one_id_are_told_apart(client: openai.OpenAI):
    asked: Any = [{"role": "assistant", "content": text, "id": "msg_1"} for text in "abc"]
    made = client.responses.create(model=MODEL, input=asked)
    items = list(client.responses.input_items.list(made.id, limit=1, order="asc"))
    assert [item.to_dict()["content"][0]["text"] for item in items] == ["a", "b", "c"]  # type: ignore[index]


def test_a_response_that_is_not_to_be_stored_is_not(client: openai.OpenAI):
    made = client.responses.create(model=MODEL, input=ASKED, store=False)
    assert made.to_dict()["store"] is False
    assert "expires_at" not in made.to_dict()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)


def test_nothing_can_be_cancelled_since_nothing_runs_in_the_background(client: openai.OpenAI):
    made = client.responses.create(model=MODEL, input=ASKED)
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model=MODEL, input=ASKED, background=True)
    assert caught.value.param == "background"


# -- tools


@pytest.mark.parametrize("stream", [False, True])
def test_a_function_is_called_and_its_output_comes_back(
    client: openai.OpenAI, processes: Processes, stream: bool
):
    asked: Any = {"model": MODEL, "input": ASKED, "tools": TOOLS, "tool_choice": "required"}
    if stream:
        with client.responses.stream(**asked) as events:
            first: Any = events.get_final_response()
    else:
        first = client.responses.create(**asked)
    (call,) = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert call.name == "weather"
    assert "city" in json.loads(call.arguments)
    assert processes.requests()[-1]["body"]["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "description": "The weather in a city",
                "parameters": PARAMETERS,
                "strict": True,
            },
        }
    ]
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    client.responses.create(model=MODEL, input=[result], tools=TOOLS, previous_response_id=first.id)
    *_, turn, told = processes.requests()[-1]["body"]["messages"]
    function = {"name": "weather", "arguments": call.arguments}
    assert turn["tool_calls"] == [{"id": call.call_id, "function": function, "type": "function"}]
    assert told == {"role": "tool", "content": "sunny", "tool_call_id": call.call_id}


def test_several_calls_at_a_time(client: openai.OpenAI, processes: Processes):
    processes.behave("calls-3")
    with client.responses.stream(model=MODEL, input=ASKED, tools=TOOLS) as events:
        response = events.get_final_response()
    assert [item.type for item in response.output] == ["function_call"] * 3
    assert len({item.to_dict()["id"] for item in response.output}) == 3


def test_allowed_tools_are_the_only_ones_offered(client: openai.OpenAI, processes: Processes):
    other: Any = {**TOOLS[0], "name": "time"}
    client.responses.create(
        model=MODEL,
        input=ASKED,
        tools=[*TOOLS, other],
        tool_choice={
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "function", "name": "time"}],
        },
    )
    body = processes.requests()[-1]["body"]
    assert [tool["function"]["name"] for tool in body["tools"]] == ["time"]
    assert body["tool_choice"] == "required"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model=MODEL,
            input=ASKED,
            tools=[other],
            tool_choice={
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "tiem"}],
            },
        )
    assert caught.value.param == "tool_choice.tools[0].name"
    assert "Did you mean time?" in caught.value.message


# -- errors


def test_errors_name_the_field_as_the_client_knows_it(client: openai.OpenAI):
    wrong: dict[str, Any] = {
        "max_output_tokens": {"max_output_tokens": 10**6},
        "temperature": {"temperature": 3},
        "text.format.schema": {
            "text": {"format": {"type": "json_schema", "name": "x", "schema": [1]}}
        },
        "tools[0].parameters": {"tools": [{"type": "function", "name": "x", "parameters": 1}]},
        "tools[0].type": {"tools": [{"type": "web_search"}]},
        "input[1].type": {"input": [{"role": "user", "content": "x"}, {"type": "item_reference"}]},
        "input[0].content[0].type": {
            "input": [{"role": "user", "content": [{"type": "video", "x": 1}]}]
        },
        "text.verbosity": {"text": {"verbosity": "low"}},
        "conversation": {"conversation": "c_1"},
        "truncation": {"truncation": "auto"},
        "input": {"input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]},
    }  # fmt: skip
    for param, fields in wrong.items():
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**{"model": MODEL, "input": ASKED, **fields})
        assert caught.value.param == param
        assert caught.value.body is not None


def test_a_failure_in_mid_stream_ends_in_a_failed_response_with_what_was_said(
    client: openai.OpenAI, processes: Processes
):
    processes.behave("cut-after-5")
    events = list(client.responses.create(model=MODEL, input=ASKED, stream=True))
    final = judge([(event.type, event.to_dict(mode="json")) for event in events])
    assert final["status"] == "failed"
    assert final["output"][0]["content"][0]["text"] == expected_text(MESSAGES, 5)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(final["id"])


def test_another_key_cannot_see_a_response(client: openai.OpenAI, processes: Processes):
    made = client.responses.create(model=MODEL, input=ASKED)
    answer = httpx.get(f"{processes.base_url}/responses/{made.id}")
    assert answer.status_code == 401
