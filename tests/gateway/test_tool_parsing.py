"""Deployments whose raw text the gateway reads: what they are sent, and what comes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prime_inference.domain.models import GatewayParser
from prime_inference.engines.mock import MockEngine
from prime_inference.toolcalls.format import format_named, load

from .conftest import StartGateway
from .running import MESSAGES, MODEL, RunningGateway
from .test_tool_repair import NAMED, TOOLS, answered, names

PROMPT = GatewayParser("hermes", prompt="gateway")
ARGUMENTS: dict[str, Any] = {"city": '<b>São "Paulo"</b> &lt;tag&gt;\n</tool_call', "days": 3}
CALL: dict[str, Any] = {"id": "call_1", "type": "function",
        "function": {"name": "weather", "arguments": '{"city":  "Rio", "days": 1.0}'}}  # fmt: skip


@pytest.fixture
async def written(start_gateway: StartGateway, engine: MockEngine) -> RunningGateway:
    """A gateway that writes tools into the prompt of an engine like llama.cpp's."""
    return await start_gateway(engine, kinds=["llama.cpp"], tool_parser=PROMPT)


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def sent(engine: MockEngine) -> Any:
    """The body of the latest request."""
    return json.loads(engine.requests[-1].body)


def text_of(form: str, *calls: tuple[str, Any], said: str = "") -> str:
    return said + format_named(form).render_all(calls)


# -- what comes of the text


@pytest.mark.parametrize("kind", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("form", sorted(load()))
async def test_raw_text_becomes_calls(
    start_gateway: StartGateway, engine: MockEngine, stream: bool, form: str, kind: str
):
    gateway = await start_gateway(engine, kinds=[kind], tool_parser=GatewayParser(form))
    engine.say(text_of(form, ("weather", ARGUMENTS), ("news", {"city": "x", "days": 0})))
    choice = await answered(gateway, stream)
    calls = [call["function"] for call in choice["message"]["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("weather", ARGUMENTS), ("news", {"city": "x", "days": 0}),
    ]  # fmt: skip
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    assert choice["finish_reason"] == "tool_calls"
    assert await gateway.metric("prime_tool_call_answers_total") == 1
    assert await gateway.metric("prime_tool_call_errors_total") == 0


async def test_text_beside_a_call_is_content(
    written: RunningGateway, engine: MockEngine, stream: bool
):
    engine.say(text_of("hermes", ("weather", ARGUMENTS), said="I will look: 1 < 2.\n"))
    choice = await answered(written, stream)
    assert choice["message"]["content"] == "I will look: 1 < 2."
    assert names(choice) == ["weather"]


async def test_text_without_a_call_is_content_to_the_last_character(
    written: RunningGateway, engine: MockEngine, stream: bool
):
    engine.say(" <tool_call is no call>\n2 < ")
    choice = await answered(written, stream)
    assert choice["message"]["content"] == " <tool_call is no call>\n2 < "
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "stop"


async def test_arguments_are_streamed_as_they_come(written: RunningGateway, engine: MockEngine):
    engine.say(text_of("hermes", ("weather", {"city": "x" * 400, "days": 1})))
    streamed = await written.stream(tools=TOOLS)
    pieces = [
        call["function"].get("arguments", "")
        for choice in streamed.choices
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert len(pieces) > 50
    assert json.loads("".join(pieces)) == {"city": "x" * 400, "days": 1}


async def test_a_call_cut_off_says_length_and_is_no_whole_call(
    written: RunningGateway, engine: MockEngine, stream: bool
):
    engine.say(text_of("hermes", ("weather", {"city": "x" * 400, "days": 1})))
    choice = await answered(written, stream, max_tokens=40)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["arguments"].startswith('{"city": "xxx')


async def test_an_unknown_name_and_a_wrong_argument_are_given_and_counted(
    written: RunningGateway, engine: MockEngine, stream: bool
):
    engine.say(text_of("hermes", ("wether", {}), ("weather", {"city": 7})))
    choice = await answered(written, stream)
    assert names(choice) == ["wether", "weather"]
    for error in ("UnknownName", "SchemaMismatch"):
        assert await written.metric("prime_tool_call_errors_total", error=error) == 1


async def test_a_deployment_may_have_reasoning_before_its_calls(
    start_gateway: StartGateway, engine: MockEngine
):
    parser = GatewayParser("glm-4.7", reasoning="opened")
    gateway = await start_gateway(engine, tool_parser=parser)
    engine.say("First I look.</think>" + text_of("glm-4.7", ("weather", ARGUMENTS)))
    message = (await gateway.chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "First I look."
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == ARGUMENTS


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("glm-4.7", "<tool_call>weather<arg_key>city</arg_key><arg_value>Rio"),
        ("glm-4.7", "<tool_call>weather</arg_value></tool_call>"),
        ("hermes", '<tool_call>\n{"name": "weather", "arguments":'),
        ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
                    "<|tool_call_argument_begin|>"),
    ],
)  # fmt: skip
async def test_a_call_that_the_model_broke_off_never_looks_whole(
    start_gateway: StartGateway, engine: MockEngine, stream: bool, form: str, text: str
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser(form))
    engine.say(text, text)
    choice = await answered(gateway, stream)
    (call,) = choice["message"]["tool_calls"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(call["function"]["arguments"])
    assert call["function"]["arguments"]  # many clients take no text for no arguments
    assert await gateway.metric("prime_tool_call_errors_total", error="InvalidJson") == 1
    tool = {"name": "weather", "input_schema": {"type": "object"}}
    body = {"model": MODEL, "max_tokens": 500, "messages": MESSAGES, "tools": [tool]}
    response = await gateway.post("/messages", body)
    assert response.status_code == 502, response.text


async def test_no_call_is_found_where_the_caller_wants_none(
    start_gateway: StartGateway, engine: MockEngine, stream: bool
):
    parser = GatewayParser("hermes", reasoning="optional")
    gateway = await start_gateway(engine, tool_parser=parser)
    text = text_of("hermes", ("weather", ARGUMENTS))
    engine.say(f"<think>Hm.</think>So: {text}")
    choice = await answered(gateway, stream, tool_choice="none")
    assert choice["message"]["content"] == f"So: {text}"
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "stop"


async def test_an_upstreams_call_is_not_given_where_the_caller_wants_none(
    gateway: RunningGateway, engine: MockEngine, stream: bool
):
    engine.behave("calls-1")
    choice = await answered(gateway, stream, tool_choice="none")
    assert not choice["message"].get("tool_calls")
    assert choice["finish_reason"] == "stop"
    assert await gateway.metric("prime_tool_calls_unwanted_total") == 1
    assert await gateway.metric("prime_tool_call_answers_total") == 0


async def test_a_schema_of_endless_work_holds_nobody_up(
    start_gateway: StartGateway, engine: MockEngine
):
    gateway = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(45):  # 2**45 steps
        schema = {"if": schema, "then": True, "unevaluatedProperties": False}
    engine.say(text_of("hermes", ("weather", ARGUMENTS)))
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    assert (await gateway.chat(tools=[tool])).status_code == 200
    assert (await gateway.get("/models")).status_code == 200


# -- what is sent


@pytest.mark.parametrize("choice", ["auto", "required", "none", NAMED])
async def test_the_constraint_goes_with_the_request(
    start_gateway: StartGateway, engine: MockEngine, written: RunningGateway, choice: Any
):
    await written.chat(tools=TOOLS, tool_choice=choice)
    body = sent(engine)
    assert body["grammar"].startswith("root ::= ")
    assert {"tools", "tool_choice", "parallel_tool_calls"}.isdisjoint(body)
    others = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    await others.chat(tools=TOOLS, tool_choice=choice)
    body = sent(engine)
    assert body["response_format"]["type"] == "structural_tag"
    assert body["skip_special_tokens"] is False
    assert (body["tools"], body["tool_choice"]) == (TOOLS, "none")
    assert body["messages"] == MESSAGES


async def test_allowed_tools_leave_the_prompt_as_it_is_and_bind_the_grammar(
    start_gateway: StartGateway, engine: MockEngine, written: RunningGateway
):
    """The engine finds the prompt in its cache, whatever is allowed at this turn."""
    await written.chat(tools=TOOLS)
    before = sent(engine)["messages"]
    listed = {"mode": "required", "tools": [NAMED]}
    choice = {"type": "allowed_tools", "allowed_tools": listed}
    engine.say(text_of("hermes", ("weather", {"city": "x", "days": 0})))  # no grammar holds a mock
    await written.chat(tools=TOOLS, tool_choice=choice)
    body = sent(engine)
    assert body["messages"] == before
    assert "news" in body["grammar"]
    assert "weather" not in body["grammar"]
    assert await written.metric("prime_tool_call_errors_total", error="UnknownName") == 1
    others = await start_gateway(engine, tool_parser=GatewayParser("hermes"))
    await others.chat(tools=TOOLS, tool_choice=choice)
    body = sent(engine)
    assert body["tools"] == TOOLS
    assert "weather" not in json.dumps(body["response_format"])


async def test_tools_stand_in_the_system_message(written: RunningGateway, engine: MockEngine):
    await written.chat(tools=TOOLS)
    system, *rest = sent(engine)["messages"]
    assert rest == MESSAGES
    lines = system["content"].split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in lines] == TOOLS
    assert '<tool_call>\n{"name": "NAME", "arguments": {' in system["content"]


async def test_a_system_message_keeps_its_words_and_place(
    written: RunningGateway, engine: MockEngine
):
    first = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    await written.chat(tools=TOOLS, messages=[first, *MESSAGES])
    system, *rest = sent(engine)["messages"]
    assert system["content"].startswith("Be brief.\n\n")
    assert rest == MESSAGES


HISTORY: list[dict[str, Any]] = [
    *MESSAGES,
    {"role": "assistant", "content": "Looking.", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": 'rain &lt;3 "x"\n'},
    {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "sun"}]},
    {"role": "user", "content": "And now?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": ""},
]


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["with tools", "without"])
async def test_earlier_calls_and_results_are_written_back_to_the_letter(
    written: RunningGateway, engine: MockEngine, tools: Any
):
    await written.chat(messages=HISTORY, **({"tools": tools} if tools else {}))
    call = (
        '<tool_call>\n{"name": "weather", "arguments": {"city":  "Rio", "days": 1.0}}\n</tool_call>'
    )
    result = "<tool_response>\n{}\n</tool_response>".format
    assert sent(engine)["messages"][1 if tools else 0 :] == [
        *MESSAGES,
        {"role": "assistant", "content": f"Looking.\n{call}\n{call}"},
        {"role": "user", "content": result('rain &lt;3 "x"\n') + "\n" + result("sun")},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": call},
        {"role": "user", "content": result("")},
    ]


async def test_a_call_that_the_format_cannot_hold_is_refused_by_name(
    start_gateway: StartGateway, engine: MockEngine
):
    parser = GatewayParser("glm-4.7", prompt="gateway")
    gateway = await start_gateway(engine, kinds=["llama.cpp"], tool_parser=parser)
    broken = {**CALL, "function": {"name": "weather", "arguments": '{"city"'}}
    response = await gateway.chat(
        messages=[*MESSAGES, {"role": "assistant", "tool_calls": [broken]}]
    )
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[1].tool_calls"


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}


async def test_a_schema_of_the_answer_goes_only_with_calls_that_must_come(
    written: RunningGateway, engine: MockEngine
):
    refused = await written.chat(tools=TOOLS, response_format=SCHEMA)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")
    served = await written.chat(tools=TOOLS, tool_choice="required", response_format=SCHEMA)
    assert served.status_code == 200
    assert "response_format" not in sent(engine)


async def test_large_sets_of_tools_are_served_as_well(
    start_gateway: StartGateway, engine: MockEngine
):
    many = [
        {"type": "function", "function": {"name": f"t{n}", "description": "d" * 900}}
        for n in range(200)
    ]
    for parser in (GatewayParser("hermes"), None):
        gateway = await start_gateway(engine, tool_parser=parser)
        if parser is not None:
            engine.say(text_of("hermes", ("t7", {"a": 1})))
        else:
            engine.behave("calls-1")
        choice = (await gateway.chat(tools=many)).json()["choices"][0]
        assert names(choice) == ["t7" if parser else "t0"]
        assert await gateway.metric("prime_tool_call_answers_total") == 1
        assert await gateway.metric("prime_tool_call_errors_total") == 0
