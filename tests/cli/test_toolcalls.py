"""`prime inference toolcalls`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import Prime

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer", "multipleOf": 2},
            },
            "required": ["city"],
        },
    },
}
TEXT = (
    "Let me see.\n<tool_call>get_weather<arg_key>city</arg_key><arg_value>Köln &lt;</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
)


@pytest.fixture
def tools(tmp_path: Path) -> str:
    file = tmp_path / "tools.json"
    file.write_text(json.dumps([WEATHER]))
    return str(file)


def parse(prime: Prime, tools: str, *more: str, text: str = TEXT) -> Any:
    result = prime(
        "inference", "toolcalls", "parse", "-f", "glm-4.7", "-t", tools, *more, stdin=text.encode()
    )
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_formats_are_listed_with_an_example(prime: Prime):
    rows = json.loads(prime("inference", "toolcalls", "formats", "-o", "json").stdout)
    assert {row["name"] for row in rows} == {
        "deepseek-v3.1", "deepseek-v3.2", "glm-4.5", "glm-4.7", "hermes", "kimi-k2", "llama-3",
        "qwen3-coder",
    }  # fmt: skip
    assert all("Paris" in row["example"] for row in rows)
    table = prime("inference", "toolcalls", "formats", "--plain").stdout
    assert len(table.splitlines()) == 1 + len(rows)


def test_the_document_names_the_formats_as_the_command_does(prime: Prime):
    rows = json.loads(prime("inference", "toolcalls", "formats", "-o", "json").stdout)
    page = (Path(__file__).parents[2] / "docs/tool-calls.md").read_text()
    families = re.findall(r"^\| `\w+_call\.py` \|([^|]+)\|", page, re.MULTILINE)
    named = {name for cell in families for name in re.findall("`([^`]+)`", cell)}
    assert named == {row["name"] for row in rows}


def test_the_structural_tag_is_printed_alone(prime: Prime, tools: str):
    result = prime("inference", "toolcalls", "grammar", "-f", "glm-4.7", "-t", tools)
    assert json.loads(result.stdout)["type"] == "structural_tag"
    assert "not enforced: get_weather/properties/days multipleOf" in result.stderr


def test_what_is_not_enforced_is_part_of_the_json(prime: Prime, tools: str):
    args = ("inference", "toolcalls", "grammar", "-f", "hermes", "-t", tools, "-o", "json")
    document = json.loads(prime(*args, "--tool-choice", "get_weather").stdout)
    assert document["engine"] == "xgrammar"
    assert document["constraint"]["format"]["type"] == "sequence"
    assert [one["keyword"] for one in document["relaxed"]] == ["multipleOf"]


def test_llama_cpps_grammar_names_its_trigger(prime: Prime, tools: str):
    args = ("inference", "toolcalls", "grammar", "-f", "hermes", "-t", tools)
    document = json.loads(prime(*args, "--engine", "llama.cpp", "-o", "json").stdout)
    assert document["constraint"]["triggers"] == ["<tool_call>"]
    text = prime(*args, "--engine", "llama.cpp", "--tool-choice", "required").stdout
    assert text.startswith("root ::= ")


@pytest.mark.parametrize(
    "choice",
    ["none", "required", "get_weather", '{"type": "function", "name": "get_weather"}'],
)
def test_a_choice_is_a_word_a_name_or_json(prime: Prime, tools: str, choice: str):
    args = ("inference", "toolcalls", "grammar", "-f", "hermes", "-t", tools)
    result = prime(*args, "--tool-choice", choice)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["type"] == "structural_tag"


def test_parsing_gives_openais_tool_calls(prime: Prime, tools: str):
    assert parse(prime, tools) == {
        "content": "Let me see.",
        "reasoning": None,
        "tool_calls": [
            {
                "id": "call_0",
                "type": "function",
                "function": {
                    "name": "get_weather",
                    "arguments": '{"city": "Köln &lt;", "days": 3}',
                },
            }
        ],
        "finish_reason": "tool_calls",
        "problems": [
            {
                "call": 0,
                "bucket": "SchemaMismatch",
                "message": "3 is not a multiple of 2",
                "path": "/days",
            }
        ],
        "not_judged": [],
    }


@pytest.mark.parametrize("size", ["1", "2", "3", "1000"])
def test_the_size_of_the_pieces_changes_nothing(prime: Prime, tools: str, size: str):
    assert parse(prime, tools, "--chunks", size) == parse(prime, tools)


def test_reasoning_and_no_call_at_all(prime: Prime, tools: str):
    document = parse(prime, tools, "--reasoning", "opened", text="Hm.</think>\n\nNo need.")
    assert document == {
        "content": "No need.", "reasoning": "Hm.", "tool_calls": [], "finish_reason": "stop",
        "problems": [], "not_judged": [],
    }  # fmt: skip


def test_text_for_people(prime: Prime, tools: str):
    args = ("inference", "toolcalls", "parse", "-f", "glm-4.7", "-t", tools, "-o", "text")
    result = prime(*args, stdin=TEXT.encode())
    assert result.stdout.splitlines() == [
        "content: Let me see.",
        'call 0: get_weather {"city": "Köln &lt;", "days": 3}',
    ]
    assert result.stderr == "call 0: SchemaMismatch: 3 is not a multiple of 2 /days\n"


def test_bytes_that_are_no_text_are_replaced(prime: Prime, tools: str):
    args = ("inference", "toolcalls", "parse", "-f", "hermes", "-t", tools, "--chunks", "1")
    document = json.loads(prime(*args, stdin=b"a\xff\xc3\xa9\xe4\xb8").stdout)
    assert document["content"] == "a\ufffdé\ufffd"


def validate(prime: Prime, tools: str, document: Any, *more: str) -> Any:
    stdin = document if isinstance(document, bytes) else json.dumps(document).encode()
    return prime("inference", "toolcalls", "validate", "-t", tools, *more, stdin=stdin)


def call(arguments: str, name: str = "get_weather") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def test_valid_calls_succeed(prime: Prime, tools: str):
    calls = [call('{"city": "x", "days": 4}')]
    for document in (calls, {"role": "assistant", "tool_calls": calls}):
        result = validate(prime, tools, document, "-o", "json")
        assert result.exit_code == 0
        assert json.loads(result.stdout) == {
            "valid": True, "calls": 1, "problems": [], "not_judged": [],
        }  # fmt: skip


@pytest.fixture
def costly(tmp_path: Path) -> str:
    """Tools of which one has a schema that takes 2**60 steps."""
    parameters: dict[str, Any] = {"type": "object"}
    for _ in range(60):
        parameters = {"if": parameters, "then": True, "unevaluatedProperties": False}
    tool = {"type": "function", "function": {"name": "costly", "parameters": parameters}}
    file = tmp_path / "costly.json"
    file.write_text(json.dumps([WEATHER, tool]))
    return str(file)


def test_a_schema_that_is_endless_work_does_not_judge(prime: Prime, costly: str):
    calls = [call('{"a": 1}', "costly"), call("{}"), call("{}", "nope")]
    result = validate(prime, costly, calls[:1])
    assert result.exit_code == 1
    assert "call 0: not judged: the schema is too costly" in result.stdout
    assert "1 of 1 calls were not judged" in result.stderr
    document = json.loads(validate(prime, costly, calls, "-o", "json").stdout)
    assert document["not_judged"] == [0]
    assert [one["call"] for one in document["problems"]] == [1, 2]


def test_parsing_does_not_judge_by_it_either(prime: Prime, costly: str):
    text = "<tool_call>costly<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    document = parse(prime, costly, text=text)
    assert (document["not_judged"], document["problems"]) == ([0], [])


@pytest.mark.parametrize("document", [[{"function": None}], [{"function": "x"}], [1], {"foo": 1}])
def test_what_is_no_call_is_wrong_usage(prime: Prime, tools: str, document: Any):
    result = validate(prime, tools, document)
    assert result.exit_code == 1
    assert "Traceback" not in result.stderr
    assert "call" in result.stderr


def test_wrong_calls_fail_in_their_buckets(prime: Prime, tools: str):
    wrong = [call("{"), call("{}", "nope"), call("{}"), call('{"city": "x"}')]
    result = validate(prime, tools, wrong, "-o", "json")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert [(one["call"], one["bucket"]) for one in problems] == [
        (0, "InvalidJson"), (1, "UnknownName"), (2, "SchemaMismatch"),
    ]  # fmt: skip
    assert json.loads(result.stderr)["error"]["code"] == "invalid_calls"


def test_what_parse_prints_can_be_validated(prime: Prime, tools: str):
    result = validate(prime, tools, parse(prime, tools))
    assert result.exit_code == 1
    assert "call 0: SchemaMismatch: 3 is not a multiple of 2 /days" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["grammar", "-f", "nope", "-t", "TOOLS"], "no format 'nope'"),
        (["grammar", "-f", "llama3", "-t", "TOOLS"], "Did you mean llama-3?"),
        (["grammar", "-f", "hermes", "-t", "TOOLS", "--tool-choice", "nope"], "no tool is named"),
        (["grammar", "-f", "hermes", "-t", "TOOLS", "--tool-choice", "{"], "not JSON"),
        (["grammar", "-f", "hermes", "-t", "TOOLS", "--engine", "x"], "--engine must be one of"),
        (["parse", "-f", "hermes", "-t", "TOOLS", "--reasoning", "x"], "--reasoning must be"),
    ],
)
def test_wrong_usage_says_what_is_wrong(prime: Prime, tools: str, args: list[str], message: str):
    result = prime("inference", "toolcalls", *[tools if a == "TOOLS" else a for a in args])
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [("[", "is not JSON"), ("{}", "must be an array"), ('[{"name": "a b"}]', "tools[0].name")],
)
def test_a_file_without_tools_is_refused(prime: Prime, tmp_path: Path, content, message):
    file = tmp_path / "tools.json"
    file.write_text(content)
    result = prime("inference", "toolcalls", "grammar", "-f", "hermes", "-t", str(file))
    assert result.exit_code == 1
    assert message in result.stderr


@pytest.mark.parametrize("document", [b"{", "text", [{"name": "x"}], [1]])
def test_what_is_no_call_is_refused(prime: Prime, tools: str, document: Any):
    assert validate(prime, tools, document).exit_code == 1


def test_a_request_may_stand_for_its_tools(prime: Prime, tmp_path: Path):
    file = tmp_path / "request.json"
    file.write_text(json.dumps({"model": "x", "tools": [WEATHER]}))
    result = prime("inference", "toolcalls", "grammar", "-f", "hermes", "-t", str(file))
    assert result.exit_code == 0
