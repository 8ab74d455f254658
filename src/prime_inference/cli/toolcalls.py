"""`prime inference toolcalls`: grammars, parsers and validation of tool calls, by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from prime_inference.cli.failures import CommandFailed, WrongUsage
from prime_inference.cli.options import (
    Command,
    Group,
    Plain,
    TableOrJson,
    TextOrJson,
    json_help,
    one_of,
)
from prime_inference.cli.terminal import Column, Terminal

if TYPE_CHECKING:
    from prime_inference.toolcalls.format import ToolFormat
    from prime_inference.toolcalls.parser import ReasoningMode
    from prime_inference.toolcalls.tools import ToolChoice, ToolSet

app = typer.Typer(
    cls=Group, no_args_is_help=True, help="Grammars, parsers and validation of tool calls."
)

Format = Annotated[
    str,
    typer.Option("--format", "-f", help="How the model writes calls; see `toolcalls formats`."),
]
Tools = Annotated[
    Path,
    typer.Option(
        "--tools", "-t", help="JSON file: a list of tools, or a request that has one.", exists=True,
        dir_okay=False,
    ),
]  # fmt: skip
Choice = Annotated[
    str,
    typer.Option(
        "--tool-choice", metavar="auto|none|required|NAME|JSON", help="As in a request, or a name."
    ),
]
Reasoning = Annotated[
    str,
    typer.Option(
        "--reasoning",
        metavar="none|opened|optional",
        help="Whether the model thinks first: not at all, begun by the prompt, or as it likes.",
        callback=one_of("--reasoning", "none", "opened", "optional"),
    ),
]


class CallsInvalid(CommandFailed):
    """Some call is wrong; what is wrong was printed."""

    code = "invalid_calls"


class CallsNotJudged(CommandFailed):
    """No call is known to be wrong, but some schema was too much work to tell."""

    code = "calls_not_judged"


@app.callback()
def group(plain: Plain = False) -> None:
    """Grammars, parsers and validation of tool calls, as the gateway uses them."""


GRAMMAR_EPILOG = json_help(
    "{engine, constraint: a structural tag | {grammar, triggers} | null,"
    " relaxed: [{tool, path, keyword, why}, ...]}"
)


@app.command("grammar", cls=Command, epilog=GRAMMAR_EPILOG)
def grammar(
    form: Format,
    tools: Tools,
    tool_choice: Choice = "auto",
    engine: Annotated[
        str,
        typer.Option(
            metavar="xgrammar|llama.cpp",
            help="Structural tag (vLLM, SGLang, Dynamo), or GBNF.",
            callback=one_of("--engine", "xgrammar", "llama.cpp"),
        ),
    ] = "xgrammar",
    parallel: Annotated[bool, typer.Option(help="Several calls in one answer.")] = True,
    reasoning: Reasoning = "none",
    output: TextOrJson = "text",
    plain: Plain = False,
) -> None:
    """Print what a model may write, given tools and a choice.

    Text output is the constraint alone, ready for an engine; what the grammar
    does not enforce is named on stderr.

    Examples:
      prime inference toolcalls grammar --format glm-4.7 --tools tools.json
      prime inference toolcalls grammar -f hermes -t tools.json --tool-choice required
      prime inference toolcalls grammar -f hermes -t tools.json --engine llama.cpp
    """
    from prime_inference.toolcalls.constraint import gbnf, structural_tag

    terminal = Terminal(plain=plain)
    chosen, known = _format(form), _tools(tools)
    build: Any = structural_tag if engine == "xgrammar" else gbnf
    choice = _choice(tool_choice, known)
    built = build(chosen, known, choice, parallel=parallel, reasoning=reasoning)
    if engine == "xgrammar":
        constraint, text = built.tag, json.dumps(built.tag, ensure_ascii=False)
    else:
        constraint = built.grammar and {"grammar": built.grammar, "triggers": list(built.triggers)}
        text = built.grammar or "null"
    relaxed = [
        {"tool": one.tool, "path": one.path, "keyword": one.keyword, "why": one.why}
        for one in built.relaxed
    ]
    if output == "json":
        terminal.json({"engine": engine, "constraint": constraint, "relaxed": relaxed})
        return
    terminal.line(text.rstrip("\n"))
    for one in relaxed:
        terminal.note(f"not enforced: {one['tool']}{one['path']} {one['keyword']}: {one['why']}")


PARSE_EPILOG = json_help(
    "{content, reasoning, tool_calls: [{id, type, function: {name, arguments}}, ...],"
    " finish_reason,"
    " problems: [{call, bucket: InvalidJson|UnknownName|SchemaMismatch, message, path}, ...],"
    " not_judged: [call, ...]}"
)


@app.command("parse", cls=Command, epilog=PARSE_EPILOG)
def parse(
    form: Format,
    tools: Tools,
    tool_choice: Choice = "auto",
    chunks: Annotated[
        int | None, typer.Option(min=1, help="Read the text in pieces of so many bytes.")
    ] = None,
    reasoning: Reasoning = "none",
    output: TextOrJson = "json",
    plain: Plain = False,
) -> None:
    """Read a model's raw text on stdin and print the message that it amounts to.

    The result does not depend on --chunks. Problems are printed and are no
    failure of this command: see `validate` for that.

    Examples:
      prime inference toolcalls parse --format glm-4.7 --tools tools.json < answer.txt
      prime inference toolcalls parse -f kimi-k2 -t tools.json --chunks 3 < answer.txt
      prime inference toolcalls parse -f hermes -t tools.json -o text < answer.txt
    """
    from prime_inference.toolcalls import openai
    from prime_inference.toolcalls.call_sink import judged_elsewhere
    from prime_inference.toolcalls.events import collect
    from prime_inference.toolcalls.parser import Parser

    terminal = Terminal(plain=plain)
    known = _tools(tools)
    choice = _choice(tool_choice, known)
    mode = cast("ReasoningMode", reasoning)
    parser = Parser(_format(form), known, reasoning=mode, check=judged_elsewhere)
    events = [event for piece in _pieces(chunks) for event in parser.feed(piece)]
    message = collect([*events, *parser.finish()])
    judged, not_judged = _judged([(call.name, call.arguments) for call in message.calls], known)
    found = [one for one in openai.problems(message) if one["bucket"] != "UnknownName"]
    found = sorted([*found, *judged], key=lambda one: one["call"])
    if output == "json":
        terminal.json(
            {
                "content": message.content,
                "reasoning": message.reasoning,
                "tool_calls": openai.tool_calls(message, lambda index: f"call_{index}"),
                "finish_reason": openai.finish_reason(len(message.calls), choice),
                "problems": found,
                "not_judged": not_judged,
            }
        )
        return
    for title, text in (("reasoning", message.reasoning), ("content", message.content)):
        if text is not None:
            terminal.line(f"{title}: {text}")
    for call in message.calls:
        terminal.line(f"call {call.index}: {call.name} {call.arguments}")
    for one in found:
        line = f"call {one['call']}: {one['bucket']}: {one['message']} {one['path']}"
        terminal.note(line.rstrip())
    for index in not_judged:
        terminal.note(_not_judged(index))


def _pieces(chunks: int | None) -> Iterator[str]:
    """Standard input as text, in pieces of so many bytes, decoded as engines decode them."""
    import codecs

    raw = sys.stdin.buffer.read()
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    size = chunks or max(len(raw), 1)
    for start in range(0, len(raw), size):
        yield decoder.decode(raw[start : start + size])
    yield decoder.decode(b"", final=True)


VALIDATE_EPILOG = json_help(
    "{valid, calls, problems: [{call, bucket, message, path}, ...], not_judged: [call, ...]}"
)


@app.command("validate", cls=Command, epilog=VALIDATE_EPILOG)
def validate(tools: Tools, output: TextOrJson = "text", plain: Plain = False) -> None:
    """Judge tool calls on stdin by the caller's own schemas; exit with 1 if one is wrong.

    A schema that takes more than a second of work does not judge: such a call is
    named as not judged, which is no success either.

    Standard input is JSON: a list of calls as chat completions has them, a
    message with tool_calls, or the output of `toolcalls parse`.

    Examples:
      prime inference toolcalls validate --tools tools.json < calls.json
      prime inference toolcalls validate -t tools.json -o json < message.json | jq .problems
    """
    terminal = Terminal(plain=plain)
    known = _tools(tools)
    calls = _calls(sys.stdin.buffer.read())
    found, not_judged = _judged(calls, known)
    wrong = len({one["call"] for one in found})
    if output == "json":
        valid = not (found or not_judged)
        terminal.json(
            {"valid": valid, "calls": len(calls), "problems": found, "not_judged": not_judged}
        )
    else:
        behind = f", {len(not_judged)} not judged" if not_judged else ""
        terminal.line(f"{len(calls)} calls, {wrong} wrong{behind}")
        for one in found:
            line = f"call {one['call']}: {one['bucket']}: {one['message']} {one['path']}"
            terminal.line(line.rstrip())
        for index in not_judged:
            terminal.line(_not_judged(index))
    if found:
        raise CallsInvalid(f"{wrong} of {len(calls)} calls are wrong")
    if not_judged:
        raise CallsNotJudged(f"{len(not_judged)} of {len(calls)} calls were not judged")


def _judged(calls: list[tuple[str, str]], tools: ToolSet) -> tuple[list[dict[str, Any]], list[int]]:
    """What is wrong with calls, each name and arguments, and which of them were not judged."""
    from prime_inference.cli.toolcall_judgement import judge
    from prime_inference.toolcalls.validate import Bucket, Problem

    known = {i: (text, tool) for i, (name, text) in enumerate(calls) if (tool := tools.get(name))}
    by_call = dict(zip(known, judge(list(known.values())), strict=True))
    for index, (name, _) in enumerate(calls):
        if index not in known:
            by_call[index] = (Problem(Bucket.UNKNOWN_NAME, f"no tool is named {name!r}"),)
    found = [
        {"call": index, "bucket": one.bucket.value, "message": one.message, "path": one.path}
        for index in range(len(calls))
        for one in by_call[index] or ()
    ]
    return found, [index for index in range(len(calls)) if by_call[index] is None]


def _not_judged(index: int) -> str:
    from prime_inference.cli.toolcall_judgement import NOT_JUDGED

    return f"call {index}: {NOT_JUDGED}"


def _calls(raw: bytes) -> list[tuple[str, str]]:
    """Name and arguments of each call."""
    document = _json(raw, "standard input")
    if isinstance(document, dict):
        document = document.get("tool_calls")
    if not isinstance(document, list):
        raise WrongUsage("Standard input is neither a list of calls nor a message with tool_calls.")
    return [_name_and_arguments(call) for call in document]


def _name_and_arguments(call: object) -> tuple[str, str]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if isinstance(function, dict):
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str) and isinstance(arguments, str):
            return name, arguments
    raise WrongUsage("A call has a name, and arguments as JSON text.")


FORMATS_EPILOG = json_help("[{name, models, example}, ...]")


@app.command("formats", cls=Command, epilog=FORMATS_EPILOG)
def formats(output: TableOrJson = "table", plain: Plain = False) -> None:
    """List the formats in which models write tool calls, with a call in each.

    Examples:
      prime inference toolcalls formats
      prime inference toolcalls formats -o json | jq -r '.[].name'
    """
    from prime_inference.toolcalls.format import load

    terminal = Terminal(plain=plain)
    rows = [
        {
            "name": name,
            "models": form.models,
            "example": form.render_all([("get_weather", {"city": "Paris", "days": 3})]),
        }
        for name, form in load().items()
    ]
    if output == "json":
        terminal.json(rows)
        return
    columns = [Column("name", style="cyan"), Column("models"), Column("example")]
    terminal.table(
        "Formats of tool calls",
        columns,
        [[row["name"], row["models"], row["example"]] for row in rows],
    )


def _format(name: str) -> ToolFormat:
    from prime_inference.domain.errors import InvalidRequest
    from prime_inference.toolcalls.format import format_named

    try:
        return format_named(name)
    except InvalidRequest as error:
        raise WrongUsage(f"--format: {error.message}") from error


def _tools(path: Path) -> ToolSet:
    from prime_inference.domain.errors import InvalidRequest
    from prime_inference.toolcalls.tools import read_tools

    document = _json(path.read_bytes(), str(path))
    if isinstance(document, dict):
        document = document.get("tools")
    try:
        return read_tools(document)
    except InvalidRequest as error:
        raise WrongUsage(f"--tools: {error.message} ({error.param})") from error


def _choice(text: str, tools: ToolSet) -> ToolChoice:
    """The choice on the command line: a word, the name of a tool, or JSON."""
    from prime_inference.domain.errors import InvalidRequest
    from prime_inference.toolcalls.tools import read_choice

    raw: object = text
    if text.startswith("{"):
        raw = _json(text.encode(), "--tool-choice")
    elif text not in ("auto", "none", "required"):
        raw = {"type": "function", "function": {"name": text}}
    try:
        return read_choice(raw, tools)
    except InvalidRequest as error:
        raise WrongUsage(f"--tool-choice: {error.message}") from error


def _json(raw: bytes, where: str) -> Any:
    import msgspec

    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise WrongUsage(f"{where} is not JSON: {error}") from error
