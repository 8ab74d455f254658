"""Writes the cases for other parsers to read, and the report of what came of them.

python -m benchmarks.upstream_parsers cases cases.json
.envs/vllm/bin/python benchmarks/upstream_parsers/vllm_parsers.py cases.json vllm.json
python -m benchmarks.upstream_parsers report cases.json vllm.json docs/tool-calls-upstream.md
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.toolcalls import corpus_text, corpus_values
from tests.toolcalls.case import Case

from prime_inference.toolcalls.events import collect
from prime_inference.toolcalls.format import format_named
from prime_inference.toolcalls.parser import Parser, parse
from prime_inference.toolcalls.tools import read_tools

Json = Any
WAYS = ("whole", "streamed", "streamed by five")


def cases() -> list[Json]:
    """The corpus of the tests, as far as it is about calls: reasoning is another parser's."""
    every = [*corpus_values.CASES, *corpus_text.CASES]
    return [as_json(case) for case in every if case.mode == "none"]


def as_json(case: Case) -> Json:
    schema = {"type": "object", "properties": dict(case.properties), **case.schema}
    names = ["f", *(name for name in case.tools.by_name if name != "f")]
    tools = [
        {
            "type": "function",
            "function": {"name": name, "parameters": schema if name == "f" else {}},
        }
        for name in names
    ]
    return {
        "bug": case.bug,
        "report": case.report,
        "form": case.form,
        "text": case.text,
        "tools": tools,
        "calls": [[name, arguments] for name, arguments in case.calls],
        "content": case.content,
    }


def ours(case: Json) -> Json:
    """What our own parser makes of a case, read in the same ways."""
    form, tools, text = format_named(case["form"]), read_tools(case["tools"]), case["text"]
    messages = [parse(text, form, tools)]
    for size in (1, 5):
        parser = Parser(form, tools)
        pieces = (text[at : at + size] for at in range(0, len(text), size))
        events = [event for piece in pieces for event in parser.feed(piece)]
        messages.append(collect([*events, *parser.finish()]))
    return {
        way: {"content": m.content, "calls": [[call.name, call.arguments] for call in m.calls]}
        for way, m in zip(WAYS, messages, strict=True)
    }


def verdict(case: Json, got: Json) -> str:
    """`right`, or in a word what is wrong. Whitespace around content is nobody's mistake."""
    if "exception" in got:
        return "exception"
    if [name for name, _ in got["calls"]] != [name for name, _ in case["calls"]]:
        return "lost" if len(got["calls"]) < len(case["calls"]) else "other calls"
    for (_, text), (_, expected) in zip(got["calls"], case["calls"], strict=True):
        if not same(text, expected):
            return "arguments"
    return "right" if stripped(got["content"]) == stripped(case["content"]) else "content"


def same(text: str | None, expected: Json) -> bool:
    """Whether arguments are those expected, types and digits included, or the same broken text."""
    wanted = expected if isinstance(expected, str) else json.dumps(expected)
    return text == wanted or (text is not None and canonical(text) == canonical(wanted))


def canonical(text: str) -> str:
    """JSON without what carries no meaning; broken text as it is."""
    try:
        value = json.loads(text, parse_float=Decimal)
    except ValueError:
        return text
    return json.dumps(value, sort_keys=True, default=lambda number: {"decimal": str(number)})


def stripped(content: str | None) -> str:
    return (content or "").strip()


def report(every: list[Json], other: Json) -> str:
    """A Markdown document: counts by format, then each case."""
    name = f"{other['name']} {other['version']}"
    mine = [{way: verdict(c, got) for way, got in ours(c).items()} for c in every]
    theirs = [
        {way: verdict(case, got) for way, got in result.items()}
        for case, result in zip(every, other["results"], strict=True)
    ]
    lines = [
        "# Reported texts, read by us and by others",
        "",
        f"Written by `python -m benchmarks.upstream_parsers`. {len(every)} texts: the corpus of"
        " `tests/toolcalls`, made from public reports of broken tool calls and their relatives,"
        f" without those about reasoning. {name} was given each as its server gives them, with a"
        " tokenizer of one token for each marker and each byte: whole, token by token, and five"
        " tokens at a time. We wrote the texts and say what is right, so a difference is a"
        " difference of opinion first; arguments are compared as JSON, types and all, and"
        " whitespace around content does not count.",
        "",
        "| format | texts | " + " | ".join(f"we, {way}" for way in WAYS)
        + " | " + " | ".join(f"{other['name']}, {way}" for way in WAYS) + " |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    forms = sorted({case["form"] for case in every})
    for form in [*forms, "all"]:
        chosen = [n for n, case in enumerate(every) if form in (case["form"], "all")]
        counts = [
            str(sum(found[n][way] == "right" for n in chosen))
            for found in (mine, theirs)
            for way in WAYS
        ]
        lines.append(f"| {form} | {len(chosen)} | {' | '.join(counts)} |")
    kinds = Counter(found[way] for found in theirs for way in WAYS)
    told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    lines += ["", f"Verdicts on {other['name']} over all readings: {told}.", ""]
    lines += [
        "## Each text",
        "",
        "The number is the report's in the tests; 0 is a case of our own.",
        "",
    ]
    lines += [
        f"| report | format | we | {other['name']}, {' / '.join(WAYS)} |",
        "|---|---|---|---|",
    ]
    for case, me, them in zip(every, mine, theirs, strict=True):
        label = f"{case['bug']} {case['report']}"
        lines.append(f"| {label} | {case['form']} | {brief(me)} | {brief(them)} |")
    return "\n".join(lines) + "\n"


def brief(found: dict[str, str]) -> str:
    """One word if all readings agree."""
    words = [found[way] for way in WAYS]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def main(arguments: Iterable[str]) -> None:
    match list(arguments):
        case ["cases", target]:
            Path(target).write_text(json.dumps(cases(), ensure_ascii=False, indent=1))
        case ["report", source, results, target]:
            every = json.loads(Path(source).read_text())
            Path(target).write_text(report(every, json.loads(Path(results).read_text())))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
