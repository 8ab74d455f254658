"""Rules of the parser that are not about single reports: order, indices, ids, memory."""

from __future__ import annotations

import json

import pytest

from prime_inference.toolcalls.events import (
    ArgumentsPart,
    CallBegun,
    CallEnded,
    Content,
    Event,
    Reasoning,
)
from prime_inference.toolcalls.format import format_named, load
from prime_inference.toolcalls.parser import Parser, parse
from prime_inference.toolcalls.readings import readings_of
from prime_inference.toolcalls.tools import Tool, ToolSet, read_tools

FORMATS = sorted(load())
TOOLS = read_tools(
    [
        {
            "name": "write",
            "parameters": {
                "properties": {
                    "text": {"type": "string"},
                    "note": {"type": ["string", "null"]},
                    "rows": {"type": "array"},
                }
            },
        },
        {"name": "now"},
    ]
)


def events_of(name: str, pieces: list[str], **more) -> list[Event]:
    parser = Parser(format_named(name), TOOLS, **more)
    return [event for piece in pieces for event in parser.feed(piece)] + parser.finish()


@pytest.mark.parametrize("name", FORMATS)
def test_events_come_in_order_with_indices_from_zero(name):  # sglang#5661, dynamo#4723
    form = load()[name]
    calls = [("write", {"text": "a"}), ("now", {}), ("write", {"text": "b"})]
    events = events_of(name, list(form.render_all(calls)))
    begun = [event.index for event in events if isinstance(event, CallBegun)]
    ended = [event.index for event in events if isinstance(event, CallEnded)]
    assert begun == ended == [0, 1, 2]
    order = [
        (event.index, type(event).__name__)
        for event in events
        if isinstance(event, CallBegun | ArgumentsPart | CallEnded)
    ]
    assert order == sorted(order, key=lambda pair: pair[0])
    for index in begun:
        kinds = [kind for i, kind in order if i == index]
        assert kinds[0] == "CallBegun"
        assert kinds[-1] == "CallEnded"


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_string_is_passed_on_as_it_comes(name):
    text = load()[name].render_all([("write", {"text": "word " * 200})])
    parser = Parser(load()[name], TOOLS)
    half = text.index("word") + 500
    parts = [e.text for e in parser.feed(text[:half]) if isinstance(e, ArgumentsPart)]
    assert 450 < len("".join(parts)) < 550


@pytest.mark.parametrize("name", ["glm-4.7", "qwen3-coder"])
def test_a_string_that_may_be_null_is_passed_on_once_it_is_none(name):
    text = load()[name].render_all([("write", {"note": "nullify " * 100})])
    parser = Parser(load()[name], TOOLS)
    parts = [e.text for e in parser.feed(text[:-200]) if isinstance(e, ArgumentsPart)]
    assert len("".join(parts)) > 500


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_makes_the_reader_hold_much(name):
    form = load()[name]
    marks = "".join([*form.openers.marks, *form.stray, *form.think])
    hostile = [
        form.frame.begin * 500, "<" * 5000, " \n" * 5000, marks * 50, "{" * 5000, '{"name"' * 500,
        form.render("write", {"text": "x" * 5000}, 0), form.render("write", {"rows": [1] * 999}, 0),
        form.frame.begin + " " * 5000, form.frame.trigger + "x" * 5000, '\\"' * 3000,
    ]  # fmt: skip
    for text in hostile:
        parser = Parser(form, TOOLS)
        held = 0
        for start in range(0, len(text), 4):
            parser.feed(text[start : start + 4])
            held = max(held, len(parser._reader.text) - parser._reader.at)
        parser.finish()
        assert held < 1000, text[:40]


@pytest.mark.parametrize("name", FORMATS)
def test_a_megabyte_in_small_pieces_reads_as_in_one(name):
    form = load()[name]
    line = '    if a < b && c == "d\\n":  # <x> &lt;\n'
    arguments = {"text": line * (1_000_000 // len(line)), "rows": [{"id": 2**60, "v": None}] * 100}
    text = form.render_all([("write", arguments)])
    whole = parse(text, form, TOOLS)
    assert json.loads(whole.calls[0].arguments) == arguments
    assert whole.calls[0].problems == ()
    pieces = [text[start : start + 64] for start in range(0, len(text), 64)]
    ended = [event for event in events_of(name, pieces) if isinstance(event, CallEnded)]
    assert tuple(ended) == whole.calls


def test_kimis_ids_are_the_models_own():
    form = format_named("kimi-k2")
    text = form.render_all([("now", {}), ("now", {})])
    assert [call.id for call in parse(text, form, TOOLS).calls] == [
        "functions.now:0",
        "functions.now:1",
    ]


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "kimi-k2"])
def test_other_formats_have_no_ids(name):
    form = load()[name]
    assert parse(form.render_all([("now", {})]), form, TOOLS).calls[0].id is None


def test_reasoning_and_content_are_told_apart_as_they_come():
    events = events_of("hermes", ["<thi", "nk>a", "b</think", ">\n\nc"], reasoning="optional")
    assert events == [Reasoning("a"), Reasoning("b"), Content("c")]


def test_nothing_comes_after_the_end():
    parser = Parser(format_named("hermes"), TOOLS)
    parser.feed("text")
    parser.finish()
    assert parser.finish() == []
    assert parser.feed("more") == []


def test_empty_pieces_change_nothing():
    assert events_of("glm-4.7", ["", "a", "", "b", ""]) == [Content("a"), Content("b")]
    assert events_of("glm-4.7", []) == []


def test_names_that_are_not_declared_are_read_in_one_way_that_is_worked_out_once():
    values = [f"w{i}" for i in range(990)]
    tool = Tool("f", {"additionalProperties": {"anyOf": [{"enum": values}, {"type": "array"}]}})
    readings = readings_of(tool, python_words=False)
    assert readings.of("a") is readings.of("b")


def test_telling_values_from_strings_is_bounded_for_a_whole_answer():
    schema = {"enum": [[i] for i in range(1000)]}
    tools = ToolSet([Tool("f", {"additionalProperties": {"anyOf": [schema, {"type": "string"}]}})])
    values = "".join(
        f"<arg_key>k{i}</arg_key><arg_value>[-{i + 1}]</arg_value>" for i in range(200)
    )
    [call] = parse(f"<tool_call>f{values}</tool_call>", load()["glm-4.7"], tools).calls
    read = list(json.loads(call.arguments).values())
    assert (read[0], read[-1]) == ("[-1]", [-200])  # compared with 1,000 lists, and not any more
