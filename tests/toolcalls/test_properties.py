"""What holds for every schema, value and text: round trip, and streaming as one shot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prime_inference.toolcalls.events import Message, collect
from prime_inference.toolcalls.format import ToolFormat, load
from prime_inference.toolcalls.json_rules import Unwritable
from prime_inference.toolcalls.parser import Parser, ReasoningMode, parse
from prime_inference.toolcalls.tagged_call import TaggedCall
from prime_inference.toolcalls.tools import read_tools
from tests.toolcalls.strategies import cuts, is_ambiguous, pieces_of_markup, tool_calls

FORMATS = sorted(load())
MODES: tuple[ReasoningMode, ...] = ("none", "opened", "optional")


def read(form: ToolFormat, tools: Any, pieces: list[str], mode: ReasoningMode = "none") -> Message:
    parser = Parser(form, tools, reasoning=mode)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return collect([*events, *parser.finish()])


def exact(value: Any) -> str:
    """A form in which 1, 1.0 and true differ, and all digits count."""
    return repr(value)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=100, deadline=None)
@given(drawn=tool_calls(), data=st.data())
def test_what_is_rendered_reads_back_as_it_was(name: str, drawn: Any, data: st.DataObject):
    form = load()[name]
    raw_tools, calls = drawn
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in raw_tools}
    if isinstance(form, TaggedCall) and form.style.after_other is None:
        for tool, arguments in calls:
            declared = schemas[tool]["properties"]
            assume(
                not any(
                    is_ambiguous(v, declared.get(k, {}), schemas[tool])
                    for k, v in arguments.items()
                )
            )
    try:
        text = form.render_all(calls)
    except Unwritable:  # a closing tag inside a string
        assume(False)
    before = data.draw(st.sampled_from(["", "Let me see.\n\n"]))
    message = read(form, read_tools(raw_tools), data.draw(cuts(before + text)))
    assert [call.name for call in message.calls] == [tool for tool, _ in calls]
    for call, (_, arguments) in zip(message.calls, calls, strict=True):
        assert exact(json.loads(call.arguments)) == exact(dict(arguments))
        assert call.problems == ()
    assert message.content == (before.strip() or None)


def markers_of(form: ToolFormat) -> list[str]:
    texts = [form.render("f", {"v": "1"}, 0), form.render("now", {}, 0)]
    frame = form.frame
    return [*texts, frame.begin, frame.end, *filter(None, (frame.section_begin, frame.section_end)),
            *form.openers.marks, *form.stray]  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_text_reads_the_same_however_it_is_cut(name: str, data: st.DataObject):
    form = load()[name]
    tools = read_tools(
        [
            {"name": "f", "parameters": {"properties": {"v": {"type": ["string", "null"]}}}},
            {"name": "now"},
        ]
    )
    text = data.draw(pieces_of_markup(markers_of(form)))
    mode = data.draw(st.sampled_from(MODES))
    whole = parse(text, form, tools, reasoning=mode)
    assert read(form, tools, list(text), mode) == whole
    assert read(form, tools, data.draw(cuts(text)), mode) == whole


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=100, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_text_without_markers_is_content_byte_for_byte(name: str, text: str):
    form = load()[name]
    assume(not any(mark in text for mark in form.openers.marks))
    message = read(form, read_tools([{"name": "f"}]), list(text))
    assert (message.content or "") == text
    assert message.calls == ()


def read_cut(form: ToolFormat, tools: Any, pieces: list[str], mode: ReasoningMode) -> Message:
    """A text that somebody else ended: a limit, or a stop string."""
    parser = Parser(form, tools, reasoning=mode)
    events = [event for piece in pieces for event in parser.feed(piece)]
    return collect([*events, *parser.finish(cut=True)])


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(drawn=tool_calls(), data=st.data())
def test_a_text_that_was_cut_is_the_beginning_of_what_it_would_have_been(
    name: str, drawn: Any, data: st.DataObject
):
    form = load()[name]
    raw_tools, calls = drawn
    try:
        text = "Let me see. " + form.render_all(calls)
    except Unwritable:
        assume(False)
    tools = read_tools(raw_tools)
    full = parse(text, form, tools)
    cut = text[: data.draw(st.integers(0, len(text)))]
    message = read_cut(form, tools, data.draw(cuts(cut)), "none")
    assert message == read_cut(form, tools, [cut], "none") == read_cut(form, tools, [*cut], "none")
    assert "Let me see. ".startswith(message.content or "")
    assert [call.name for call in message.calls] == [
        call.name for call in full.calls[: len(message.calls)]
    ]
    for got, would in zip(message.calls[:-1], full.calls, strict=False):
        assert got == would
    if message.calls:
        last, would = message.calls[-1], full.calls[len(message.calls) - 1]
        assert last == would or would.arguments.startswith(last.arguments)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_any_text_that_was_cut_reads_the_same_whatever_its_pieces(name: str, data: st.DataObject):
    form = load()[name]
    tools = read_tools([{"name": "f", "parameters": {"properties": {"v": {}}}}, {"name": "now"}])
    text = data.draw(pieces_of_markup(markers_of(form)))
    mode = data.draw(st.sampled_from(MODES))
    message = read_cut(form, tools, [text], mode)
    assert read_cut(form, tools, list(text), mode) == message
    assert read_cut(form, tools, data.draw(cuts(text)), mode) == message
