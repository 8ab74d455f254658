import base64
import json
import struct
from typing import Any

import jsonschema
import openai
import pytest

from prime_inference.engines.mock import MockEngine, expected_text, expected_usage
from prime_inference.engines.mock.text import ids_text
from tests.engines.mock.conftest import HELLO, Client, streamed_text

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}


async def test_a_whole_answer_is_the_expected_text_and_usage(client: Client):
    answer = (await client.chat(max_tokens=5)).json()
    prompt_tokens, completion_tokens = expected_usage(HELLO, 5)
    assert answer["choices"][0]["message"]["content"] == expected_text(HELLO, 5)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


async def test_an_answer_that_nothing_limits_ends_with_stop(client: Client):
    choice = (await client.chat()).json()["choices"][0]
    assert choice["message"]["content"] == expected_text(HELLO)
    assert choice["finish_reason"] == "stop"


async def test_a_stream_says_the_same_as_a_whole_answer(client: Client):
    events = await client.events(max_completion_tokens=5)
    assert streamed_text(events) == expected_text(HELLO, 5)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["choices"][0]["finish_reason"] == "length"
    assert events[-1] == "[DONE]"
    assert not any("usage" in event for event in events[:-1])


async def test_usage_is_the_last_event_when_it_is_asked_for(client: Client):
    events = await client.events(max_tokens=5, stream_options={"include_usage": True})
    assert events[-2]["choices"] == []
    assert events[-2]["usage"]["completion_tokens"] == 5


async def test_continuous_usage_counts_along(client: Client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await client.events(max_tokens=3, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
    assert counts == [0, 1, 2, 3, 3, 3]


async def test_an_assistant_message_at_the_end_is_continued(client: Client):
    begun = expected_text(HELLO, 7)[:-1]
    messages = [*HELLO, {"role": "assistant", "content": begun}]
    answer = (await client.chat(messages=messages, continue_final_message=True)).json()
    assert begun + answer["choices"][0]["message"]["content"] == expected_text(HELLO)


async def test_token_ids_of_a_stream_continue_it_over_completions(client: Client):
    events = await client.events(max_tokens=9, return_token_ids=True)
    ids = list(events[0]["prompt_token_ids"])
    for event in events[:-1]:
        ids += event["choices"][0].get("token_ids", [])
    answer = await client.http.post("/completions", json={"model": "m", "prompt": ids})
    choice = answer.json()["choices"][0]
    assert expected_text(HELLO, 9) + choice["text"] == expected_text(HELLO)


async def test_token_ids_stand_for_the_words_of_the_answer(client: Client):
    answer = (await client.chat(max_tokens=4, return_token_ids=True)).json()
    assert ids_text(answer["choices"][0]["token_ids"]) == expected_text(HELLO, 4)


async def test_several_choices_are_streamed_side_by_side(client: Client):
    events = await client.events(n=3, max_tokens=4, stream_options={"include_usage": True})
    for index in range(3):
        assert streamed_text(events, index) == expected_text(HELLO, 4, choice=index)
    assert events[-2]["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_answer_before_it(client: Client, stream: bool):
    whole = expected_text(HELLO)
    stop = whole[18:22]
    if stream:
        events = await client.events(stop=[stop, "never said"])
        text, finish = streamed_text(events), events[-2]["choices"][0]["finish_reason"]
    else:
        choice = (await client.chat(stop=stop)).json()["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    assert text == whole[: whole.index(stop)]
    assert finish == "stop"


async def test_ignore_eos_goes_on_until_the_limit(client: Client):
    answer = (await client.chat(ignore_eos=True, max_tokens=200)).json()
    assert answer["usage"]["completion_tokens"] == 200
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_logprobs_come_with_alternatives(client: Client):
    choice = (await client.chat(max_tokens=2, logprobs=True, top_logprobs=3)).json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == choice["message"]["content"]
    assert [len(token["top_logprobs"]) for token in content] == [3, 3]
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]


async def test_completions_have_logprobs_of_their_own_shape(client: Client):
    body = {"model": "m", "prompt": "Once", "max_tokens": 3, "logprobs": 2}
    choice = (await client.http.post("/completions", json=body)).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"] == expected_text("Once", 3) == "".join(logprobs["tokens"])
    assert logprobs["text_offset"] == [0, 4, 9]
    assert [len(top) for top in logprobs["top_logprobs"]] == [2, 2, 2]


async def test_completions_of_several_prompts_are_numbered_through(client: Client):
    body = {"model": "m", "prompt": ["one", "two"], "n": 2, "max_tokens": 3}
    answer = (await client.http.post("/completions", json=body)).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][2]["text"] == expected_text("two", 3)
    assert answer["usage"]["prompt_tokens"] == 4


async def test_a_required_tool_call_has_valid_arguments(client: Client):
    choice = (await client.chat(tools=[WEATHER, CLOCK], tool_choice="required")).json()
    message = choice["choices"][0]["message"]
    assert message["content"] is None
    assert choice["choices"][0]["finish_reason"] == "tool_calls"
    [call] = message["tool_calls"]
    assert call["function"]["name"] == "weather"
    arguments = json.loads(call["function"]["arguments"])
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])  # type: ignore[index]


async def test_a_named_tool_is_called_and_ends_with_stop(client: Client):
    chosen = {"type": "function", "function": {"name": "clock"}}
    choice = (await client.chat(tools=[WEATHER, CLOCK], tool_choice=chosen)).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "clock", "arguments": "{}"}
    assert choice["finish_reason"] == "stop"


async def test_tools_that_may_be_called_are_not(client: Client):
    choice = (await client.chat(tools=[WEATHER], tool_choice="auto")).json()["choices"][0]
    assert choice["message"]["content"] == expected_text(HELLO)


async def test_streamed_tool_calls_add_up_to_the_whole_ones(client: Client):
    fields: dict[str, Any] = {"tools": [WEATHER, CLOCK], "model": "mock/calls-2"}
    whole = (await client.chat(**fields)).json()["choices"][0]["message"]["tool_calls"]
    calls: dict[int, dict[str, str]] = {}
    for event in (await client.events(**fields))[:-1]:
        for delta in event["choices"][0]["delta"].get("tool_calls", ()):
            call = calls.setdefault(delta["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += delta.get("id", "")
            call["name"] += delta["function"].get("name", "")
            call["arguments"] += delta["function"]["arguments"]
    assert [{"id": call["id"], **call["function"]} for call in whole] == list(calls.values())
    assert [call["name"] for call in calls.values()] == ["weather", "clock"]


async def test_a_tool_choice_that_names_no_tool_is_refused(client: Client):
    chosen = {"type": "function", "function": {"name": "rocket"}}
    answer = await client.chat(tools=[WEATHER], tool_choice=chosen)
    assert answer.status_code == 400
    assert "rocket" in answer.json()["error"]["message"]


async def test_a_json_schema_is_answered_with_an_instance(client: Client):
    schema = WEATHER["function"]["parameters"]  # type: ignore[index]
    form = {"type": "json_schema", "json_schema": {"name": "w", "schema": schema}}
    content = (await client.chat(response_format=form)).json()["choices"][0]["message"]["content"]
    assert json.loads(content) == {"city": "word", "days": 0}
    messages = [*HELLO, {"role": "assistant", "content": content[:11]}]
    rest = streamed_text(await client.events(response_format=form, messages=messages))
    assert content[:11] + rest == content


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_embeddings_are_unit_vectors_of_the_size_asked_for(client: Client, encoding: str):
    body = {"model": "m", "input": ["a", "b"], "dimensions": 5, "encoding_format": encoding}
    answer = (await client.http.post("/embeddings", json=body)).json()
    vectors = [item["embedding"] for item in answer["data"]]
    if encoding == "base64":
        vectors = [struct.unpack("<5f", base64.b64decode(vector)) for vector in vectors]
    assert [sum(x * x for x in vector) for vector in vectors] == pytest.approx([1, 1])
    assert vectors[0] != vectors[1]
    assert answer["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


async def test_models_and_health_answer_without_being_written_down(client: Client):
    models = (await client.http.get("/models")).json()
    assert [card["id"] for card in models["data"]] == ["mock/plain"]
    where = client.engine.base_url.removesuffix("/v1")
    assert (await client.http.get(f"{where}/health")).status_code == 200
    assert client.engine.requests == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/chat/completions", b"{", 400),
        ("/chat/completions", b'{"model":"m"}', 400),
        ("/embeddings", b"[]", 400),
        ("/nothing", b"{}", 404),
    ],
)
async def test_bad_requests_get_an_error_object(client: Client, path, body, status):
    answer = await client.http.post(path, content=body)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert client.engine.requests[-1].outcome == "refused"


async def test_a_prompt_over_the_context_window_is_refused():
    async with MockEngine(context_tokens=3) as engine, Client(engine) as client:
        answer = await client.chat()
    assert answer.status_code == 400
    assert "maximum context length is 3 tokens" in answer.json()["error"]["message"]


async def test_an_engine_with_a_key_asks_for_it():
    async with MockEngine(api_key="key-1") as engine, Client(engine) as client:
        assert (await client.chat()).status_code == 401
        client.http.headers["Authorization"] = "Bearer key-1"
        assert (await client.chat()).status_code == 200


async def test_answers_have_ids_of_their_own(client: Client):
    assert (await client.chat()).json()["id"] != (await client.chat()).json()["id"]


async def test_the_openai_sdk_understands_it(engine: MockEngine):
    async with openai.AsyncOpenAI(base_url=engine.base_url, api_key="x") as sdk:
        answer = await sdk.chat.completions.create(
            model="m", messages=HELLO, max_tokens=3, logprobs=True  # type: ignore[arg-type]
        )  # fmt: skip
        assert answer.choices[0].message.content == expected_text(HELLO, 3)
        embedding = await sdk.embeddings.create(model="m", input="a")
        assert len(embedding.data[0].embedding) == 8
        with pytest.raises(openai.RateLimitError):
            await sdk.with_options(max_retries=0).completions.create(
                model="mock/status-429", prompt="a"
            )
