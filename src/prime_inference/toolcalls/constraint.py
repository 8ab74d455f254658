"""What a model may write, given tools and choice: for xgrammar and for llama.cpp.

Both get the same rules for a call. All tools share one grammar and its rules for strings,
numbers and whitespace: compiled by xgrammar 0.2.9 for 100 tools and a vocabulary of 150,000,
that takes a tenth of the time and memory of one schema for each tool (docs/tool-calls.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from prime_inference.toolcalls.exclusion import excluding
from prime_inference.toolcalls.format import ToolFormat
from prime_inference.toolcalls.grammar import Grammar, alternatives, literal
from prime_inference.toolcalls.json_rules import Unwritable
from prime_inference.toolcalls.normalise import Relaxation
from prime_inference.toolcalls.parser import ReasoningMode
from prime_inference.toolcalls.shapes import ANY_RECORD
from prime_inference.toolcalls.tools import AUTO, Tool, ToolChoice, ToolSet

Json: TypeAlias = dict[str, Any]

# Between reasoning or nothing and the first call templates write up to two line breaks.
_LEAD = "\\n{0,2}"
_LEAD_RULE = '"\\n"{0,2}'

# In one answer, for llama.cpp: the small models that it runs repeat a call until their tokens
# end. Large ones make about a dozen at a time.
_MOST_CALLS = 32


class ToolRelaxation(msgspec.Struct, frozen=True):
    """A keyword of one tool's schema that the grammar does not enforce."""

    tool: str
    path: str
    keyword: str
    why: str


class StructuralTag(msgspec.Struct, frozen=True):
    """A constraint for xgrammar, as vLLM, SGLang and Dynamo pass it on.

    `tag` is None where nothing needs to be enforced. `encoded` is its JSON.
    """

    tag: Json | None
    encoded: bytes
    relaxed: tuple[ToolRelaxation, ...]


class Gbnf(msgspec.Struct, frozen=True):
    """A grammar for llama.cpp; with `triggers`, one that applies from the first of them on.

    `whole` says the same of an answer from its first character on: free text, then calls. For
    servers that take no triggers.
    """

    grammar: str | None
    triggers: tuple[str, ...]
    relaxed: tuple[ToolRelaxation, ...]
    whole: str | None = None


def structural_tag(
    form: ToolFormat,
    tools: ToolSet,
    choice: ToolChoice = AUTO,
    *,
    parallel: bool = True,
    reasoning: ReasoningMode = "none",
) -> StructuralTag:
    """The structural tag for one request; kept with the tool set."""
    key = ("xgrammar", form.name, choice, parallel, reasoning)
    several = parallel and not choice.single
    return tools.kept(
        key, StructuralTag, lambda: _structural_tag(form, tools, choice, several, reasoning)
    )


def gbnf(
    form: ToolFormat,
    tools: ToolSet,
    choice: ToolChoice = AUTO,
    *,
    parallel: bool = True,
    reasoning: ReasoningMode = "none",
) -> Gbnf:
    """The llama.cpp grammar for one request; kept with the tool set."""
    key = ("llama.cpp", form.name, choice, parallel, reasoning)
    several = parallel and not choice.single
    return tools.kept(key, Gbnf, lambda: _gbnf(form, tools, choice, several, reasoning))


class _Bodies:
    """The rules for what stands between `frame.begin` and `frame.end`, for some tools."""

    def __init__(self, form: ToolFormat, tools: Iterable[Tool]) -> None:
        self.grammar = Grammar()
        self.relaxed: dict[ToolRelaxation, None] = {}
        self._form = form
        self.names = [self._tool(index, tool) for index, tool in enumerate(tools)]

    def _tool(self, index: int, tool: Tool) -> str:
        def note(path: str, keyword: str, why: str) -> None:
            self.relaxed[ToolRelaxation(tool.name, path, keyword, why)] = None

        normal = tool.normal
        stem = f"t{index}"
        shape = normal.shape
        if tool.strict is False:
            shape = ANY_RECORD
        else:
            self._note_all(tool.name, normal.relaxed)
        try:  # a schema may admit nothing that this format can hold
            arguments = self._form.arguments_rule(
                self.grammar, shape, normal.definitions, stem, note
            )
        except Unwritable:
            note("", "", "nothing the schema admits can be written in this format")
            arguments = self._form.arguments_rule(self.grammar, ANY_RECORD, {}, stem, note)
        before, behind = self._form.around_arguments(tool.name)
        return self.grammar.define(stem, f"{before} {arguments} {behind}".rstrip())

    def _note_all(self, name: str, relaxed: Iterable[Relaxation]) -> None:
        for one in relaxed:
            self.relaxed[ToolRelaxation(name, one.path, one.keyword, one.why)] = None


def _structural_tag(
    form: ToolFormat, tools: ToolSet, choice: ToolChoice, parallel: bool, reasoning: ReasoningMode
) -> StructuralTag:
    allowed = tools.allowed(choice)
    relaxed: tuple[ToolRelaxation, ...] = ()
    answer: Json | None
    if choice.mode == "none" or not allowed:
        answer = _free_text(form) if tools.tools else None
    else:
        bodies = _Bodies(form, allowed)
        relaxed = tuple(bodies.relaxed)
        content = {"type": "grammar", "grammar": bodies.grammar.text(alternatives(bodies.names))}
        call = {"type": "tag", "begin": form.frame.begin, "content": content, "end": form.frame.end}
        required = choice.mode == "required"
        answer = _required(form, call, parallel) if required else _auto(form, call, parallel)
    if answer is None:
        return StructuralTag(None, b"null", relaxed)
    tag = {"type": "structural_tag", "format": _after_reasoning(form, answer, reasoning)}
    return StructuralTag(tag, msgspec.json.encode(tag), relaxed)


def _calls(form: ToolFormat, call: Json, parallel: bool) -> Json:
    """One call or, with `parallel`, several; in their section, if the format has one."""
    frame = form.frame
    several = {
        "type": "tags_with_separator",
        "tags": [call],
        "separator": frame.separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }
    if not frame.section_begin:
        return several
    return {
        "type": "tag",
        "begin": frame.section_begin,
        "content": several,
        "end": frame.section_end,
    }


def _required(form: ToolFormat, call: Json, parallel: bool) -> Json:
    lead = {"type": "regex", "pattern": _LEAD}
    return {"type": "sequence", "elements": [lead, _calls(form, call, parallel)]}


def _auto(form: ToolFormat, call: Json, parallel: bool) -> Json:
    """Free text until the trigger; from there on a call. A section comes once."""
    section = bool(form.frame.section_begin)
    return {
        "type": "triggered_tags",
        "triggers": [form.frame.trigger],
        "tags": [_calls(form, call, parallel) if section else call],
        "at_least_one": False,
        "stop_after_first": section or not parallel,
        "excludes": [*form.stray, *form.think],
    }


def _free_text(form: ToolFormat) -> Json | None:
    """Text without calls. None where a call begins like any other text."""
    if form.frame.trigger.startswith("{"):
        return None
    return {"type": "any_text", "excludes": [*form.openers.marks, *form.stray, *form.think]}


def _after_reasoning(form: ToolFormat, answer: Json, reasoning: ReasoningMode) -> Json:
    if reasoning == "none":
        return answer
    begin, end = form.think
    thought: Json = {
        "type": "tag",
        "begin": "" if reasoning == "opened" else begin,
        "content": {
            "type": "any_text",
            "excludes": [*form.think, form.frame.trigger, *form.stray],
        },
        "end": end,
    }
    if reasoning == "optional":
        thought = {"type": "optional", "content": thought}
    return {"type": "sequence", "elements": [thought, answer]}


def _gbnf(
    form: ToolFormat, tools: ToolSet, choice: ToolChoice, parallel: bool, reasoning: ReasoningMode
) -> Gbnf:
    allowed = tools.allowed(choice)
    if choice.mode == "none" or not allowed:
        free = _gbnf_free_text(form) if tools.tools else None
        return Gbnf(free, (), (), free)
    bodies = _Bodies(form, allowed)
    grammar = bodies.grammar
    frame = form.frame
    grammar.define("tool", alternatives(bodies.names))
    grammar.define("call", f"{literal(frame.begin)} tool {literal(frame.end)}")
    root = "call"
    if parallel:
        next_call = f"{literal(frame.separator)} call" if frame.separator else "call"
        root = f"call ({next_call}){{0,{_MOST_CALLS - 1}}}"
    if frame.section_begin:
        root = f"{literal(frame.section_begin)} {root} {literal(frame.section_end)}"
    if choice.mode == "auto":
        lazy = grammar.text(root)
        return Gbnf(lazy, (frame.trigger,), tuple(bodies.relaxed), _gbnf_auto(form, grammar, root))
    root = f"{_gbnf_reasoning(form, grammar, reasoning)}{_LEAD_RULE} {root}"
    text = grammar.text(root)
    return Gbnf(text, (), tuple(bodies.relaxed), text)


def _gbnf_auto(form: ToolFormat, grammar: Grammar, calls: str) -> str | None:
    """Free text, which the trigger ends. None where a call begins like any other text."""
    if form.frame.trigger.startswith("{"):
        return None
    grammar.include(excluding("prose", (form.frame.trigger, *form.stray)))
    return grammar.text(f"prose ({calls})?")


def _gbnf_reasoning(form: ToolFormat, grammar: Grammar, reasoning: ReasoningMode) -> str:
    if reasoning == "none":
        return ""
    begin, end = form.think
    grammar.include(excluding("thought", (begin, end, form.frame.trigger)))
    if reasoning == "opened":
        return f"thought {literal(end)} "
    return f"({literal(begin)} thought {literal(end)})? "


def _gbnf_free_text(form: ToolFormat) -> str | None:
    if form.frame.trigger.startswith("{"):
        return None
    grammar = Grammar()
    grammar.include(excluding("prose", form.openers.marks))
    return grammar.text("prose")
