"""How fast constraints are built and calls are read.

    python benchmarks/toolcalls.py --json results.json

Every number is the best of several runs, in processor time of this process, so that other work
on the machine distorts it less. Where xgrammar is installed, it also measures how long xgrammar
takes to compile the constraint for 100 tools, beside one JSON schema for each tool.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from prime_inference.toolcalls.constraint import gbnf, structural_tag
from prime_inference.toolcalls.format import ToolFormat, load
from prime_inference.toolcalls.parser import Parser
from prime_inference.toolcalls.tools import ToolSet, read_tools, tools_from_json

TOOLS = 100
RUNS = 30
CHUNK = 4  # characters; about a token
MEGABYTE = 1_000_000


def typical_tool(index: int) -> dict[str, Any]:
    """A tool as coding agents have them: five parameters, most described, one required.

    One name differs from tool to tool, as no two tools are alike.
    """
    path = f"path_{index}"
    properties = {
        path: {"type": "string", "description": "Absolute path of the file to read."},
        "limit": {"type": "integer", "minimum": 1, "description": "How many lines at most."},
        "mode": {"type": "string", "enum": ["text", "binary", "lines"], "description": "How."},
        "force": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Labels."},
    }
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [path],
        "additionalProperties": False,
    }
    function = {
        "name": f"tool_{index}",
        "description": "Reads a file from the workspace and returns its lines.",
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def best(prepare: Callable[[], Any], run: Callable[[Any], Any], runs: int = RUNS) -> float:
    """Seconds of the fastest run; what `prepare` gives is not measured."""
    fastest = float("inf")
    for _ in range(runs):
        given = prepare()
        gc.collect()
        begin = time.process_time()
        run(given)
        fastest = min(fastest, time.process_time() - begin)
    return fastest


def building(form: ToolFormat, raw: bytes) -> dict[str, float]:
    """Milliseconds to build, cold, and microseconds to find again what was built."""
    tag = best(lambda: bytes(bytearray(raw)), lambda b: _cold(form, b))
    rules = best(lambda: bytes(bytearray(raw)), lambda b: gbnf(form, _tools(b)))
    structural_tag(form, tools_from_json(raw))
    # The copy is another object with the same bytes, as the next request's would be; several
    # look-ups together, as the clock's steps are coarser than one. A copy hashes once.
    copies = 200
    found = best(
        lambda: [bytes(bytearray(raw)) for _ in range(copies)],
        lambda many: [structural_tag(form, tools_from_json(b)) for b in many],
        runs=10,
    )
    return {
        "tag_cold_ms": tag * 1e3,
        "gbnf_cold_ms": rules * 1e3,
        "tag_cached_us": found / copies * 1e6,
        "tag_bytes": len(structural_tag(form, tools_from_json(raw)).encoded),
    }


def _tools(raw: bytes) -> ToolSet:
    return read_tools(msgspec.json.decode(raw))


def _cold(form: ToolFormat, raw: bytes) -> Any:
    return structural_tag(form, _tools(raw))


EDIT = read_tools(
    [
        {
            "name": "edit",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "text": {"type": "string"},
                               "rows": {"type": "array"}},
            },
        }
    ]
)  # fmt: skip


def reading(form: ToolFormat) -> dict[str, float]:
    """Megabytes per second at once, and seconds per megabyte in small pieces."""
    line = '    if x < 3 && "a\\tb":\n        return {"k": [1, 2]}  # <tag> &lt;\n'
    code = line * (MEGABYTE // len(line))
    rows = [{"id": i, "name": f"n{i}", "values": [i / 7, None, True]} for i in range(14_000)]
    found = {}
    for name, arguments in (("code", {"text": code}), ("rows", {"rows": rows})):
        text = form.render("edit", arguments, 0)
        at_once = best(lambda: Parser(form, EDIT), lambda p: _feed(p, [text]), runs=5)  # noqa: B023
        pieces = [text[i : i + CHUNK] for i in range(0, len(text), CHUNK)]
        in_pieces = best(lambda: Parser(form, EDIT), lambda p: _feed(p, pieces), runs=3)  # noqa: B023
        found[f"{name}_mb_per_s"] = len(text) / at_once / MEGABYTE
        found[f"{name}_s_per_mb_in_{CHUNK}"] = in_pieces / len(text) * MEGABYTE
    return found


def _feed(parser: Parser, pieces: list[str]) -> None:
    for piece in pieces:
        parser.feed(piece)
    parser.finish()


def compiling(form: ToolFormat, raw: bytes) -> dict[str, float]:
    """Seconds and megabytes of xgrammar's compiled constraint, ours and one schema per tool."""
    import xgrammar

    info = xgrammar.TokenizerInfo(vocabulary(), xgrammar.VocabType.RAW, stop_token_ids=[0])
    tools = _tools(raw)
    ours = structural_tag(form, tools).encoded.decode()
    found = {}
    for name, tag in (("ours", ours), ("schemas", json.dumps(one_schema_per_tool(tools)))):
        compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        begin = time.process_time()
        compiled = compiler.compile_structural_tag(tag)
        found[f"{name}_s"] = time.process_time() - begin
        found[f"{name}_mb"] = compiled.memory_size_bytes / MEGABYTE
    return found


def one_schema_per_tool(tools: ToolSet) -> dict[str, Any]:
    """The usual structural tag for Hermes' format: a tag with a JSON schema for each tool."""
    tags = [
        {
            "type": "tag",
            "begin": f'<tool_call>\n{{"name": "{tool.name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": tool.parameters},
            "end": "}\n</tool_call>",
        }
        for tool in tools.tools
    ]
    triggered = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    return {"type": "structural_tag", "format": triggered}


def vocabulary(size: int = 150_000) -> list[bytes]:
    """Made-up tokens of the sizes and alphabets of a real vocabulary."""
    chance = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkqjxz ETAOIN_.,(){}[]\"'=:;/\\<>-0123456789\n\t"
    words = {bytes([value]) for value in range(256)}
    while len(words) < size:
        length = min(int(chance.expovariate(0.25)) + 1, 16)
        words.add("".join(chance.choices(letters, k=length)).encode())
    return [b"<stop>", *sorted(words)]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, help="file for the results")
    chosen = options.parse_args()
    gc.set_threshold(20_000, 20, 20)  # as the gateway has it (compose)
    raw = json.dumps([typical_tool(index) for index in range(TOOLS)]).encode()
    results: dict[str, Any] = {
        "python": platform.python_version(),
        "machine": platform.processor() or platform.machine(),
        "tools": TOOLS,
        "tools_bytes": len(raw),
        "formats": {},
    }
    for name, form in load().items():
        results["formats"][name] = building(form, raw) | reading(form)
    if importlib.util.find_spec("xgrammar"):
        results["xgrammar"] = compiling(load()["hermes"], raw)
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results["formats"]))
    if "xgrammar" in results:
        print(table({"hermes": results["xgrammar"]}))


def table(rows: dict[str, dict[str, float]]) -> str:
    """The rows as Markdown."""
    columns = list(next(iter(rows.values())))
    lines = [f"| format | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in rows.items():
        cells = [f"{row[c]:.0f}" if row[c] >= 100 else f"{row[c]:.2f}" for c in columns]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
