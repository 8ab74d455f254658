"""Writes the cases for other parsers to read, and the report of what came of them.

    make upstream-parsers
    python -m benchmarks.upstream_parsers PYTHON_WITH_VLLM_AND_DYNAMO docs/tool-calls-upstream.md

The cases alone, as the parsers are given them:

    python -m benchmarks.upstream_parsers cases cases.json
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.toolcalls import corpus_text, corpus_values
from tests.toolcalls.case import Case

from prime_inference.toolcalls.events import collect
from prime_inference.toolcalls.format import format_named
from prime_inference.toolcalls.parser import Parser, parse
from prime_inference.toolcalls.tools import read_tools

OTHERS = ("vllm_parsers.py", "dynamo_parsers.py")

Json = Any
Verdicts = list[dict[str, str]]  # of each case, by way of reading
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


def verdicts(every: list[Json], results: Iterable[Json]) -> Verdicts:
    return [
        {way: verdict(case, got) for way, got in result.items()}
        for case, result in zip(every, results, strict=True)
    ]


def read_by(python: str, script: str, every: list[Json]) -> Json:
    """What another server's parsers make of the cases."""
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch, "cases.json"), Path(scratch, "results.json")
        source.write_text(json.dumps(every, ensure_ascii=False))
        command = [python, str(Path(__file__).parent / script), str(source), str(target)]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)  # a line for each request
        return json.loads(target.read_text())


def report(every: list[Json], others: list[Json]) -> str:
    """A Markdown document: counts by format, then each case."""
    readers = {"we": verdicts(every, map(ours, every))}
    readers |= {other["name"]: verdicts(every, other["results"]) for other in others}
    return "\n".join([*_introduction(every, others), *_counts(every, readers),
                      *_each(every, readers)]) + "\n"  # fmt: skip


def _introduction(every: list[Json], others: list[Json]) -> Iterator[str]:
    names = " and ".join(f"{other['name']} {other['version']}" for other in others)
    yield from (
        "# Reported texts, read by us and by others",
        "",
        f"Written by `make upstream-parsers`. {len(every)} texts: the corpus of"
        " `tests/toolcalls`, made from public reports of broken tool calls and their relatives,"
        f" without those about reasoning. {names} were given each with a tokenizer of one token for"
        " each marker and each byte: whole, token by token, and five tokens at a time. We wrote the"
        " texts and say what is right, so a difference is a difference of opinion first; arguments"
        " are compared as JSON, types and all, and whitespace around content does not count.",
        "",
    )
    yield from (f"- {other['name']}: {other['how']}" for other in others)
    yield ""


def _counts(every: list[Json], readers: dict[str, Verdicts]) -> Iterator[str]:
    yield _row("format", "texts", *(f"{name}, {way}" for name in readers for way in WAYS))
    yield _row(*["---"] * (2 + len(readers) * len(WAYS)))
    forms = sorted({case["form"] for case in every})
    for form in [*forms, "all"]:
        chosen = [n for n, case in enumerate(every) if form in (case["form"], "all")]
        yield _row(
            form,
            len(chosen),
            *(
                sum(found[n][way] == "right" for n in chosen)
                for found in readers.values()
                for way in WAYS
            ),
        )
    yield ""
    for name, found in readers.items():
        kinds = Counter(one[way] for one in found for way in WAYS)
        told = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
        yield f"- Verdicts over all readings, {name}: {told}."
    yield ""


def _each(every: list[Json], readers: dict[str, Verdicts]) -> Iterator[str]:
    yield "## Each text"
    yield ""
    yield (
        "The number is the report's in the tests; 0 is a case of our own. Where the readings of a"
        f" text differ: {' / '.join(WAYS)}."
    )
    yield ""
    yield _row("report", "format", *readers)
    yield _row(*["---"] * (2 + len(readers)))
    for number, case in enumerate(every):
        label = f"{case['bug']} {case['report']}"
        yield _row(label, case["form"], *(brief(found[number]) for found in readers.values()))


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def brief(found: dict[str, str]) -> str:
    """One word if all readings agree."""
    words = [found[way] for way in WAYS]
    return words[0] if len(set(words)) == 1 else " / ".join(words)


def main(arguments: Iterable[str]) -> None:
    match list(arguments):
        case ["cases", target]:
            Path(target).write_text(json.dumps(cases(), ensure_ascii=False, indent=1))
        case [python, target]:
            every = cases()
            Path(target).write_text(report(every, [read_by(python, one, every) for one in OTHERS]))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
