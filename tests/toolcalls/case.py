"""The shape of a case in the corpus, and short ways to write what a model wrote.

The texts are written by hand here, not by the formats' own `render`, so that a mistake in the
one is not hidden by the same mistake in the other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prime_inference.toolcalls.parser import ReasoningMode
from prime_inference.toolcalls.tools import ToolSet, read_tools

Json = Any


@dataclass(frozen=True)
class Case:
    """What a model wrote, and what must come of it.

    `bug` is the number in the list of reports (0: none, a case of our own), `report` where it
    was filed, `properties` the schema of the tool `f`, of which the case is about. `calls` are
    names and arguments; arguments given as text are compared as text.
    """

    bug: int
    report: str
    form: str
    properties: Mapping[str, Json]
    text: str
    calls: Sequence[tuple[str, Json]]
    content: str | None = None
    reasoning: str | None = None
    buckets: Sequence[str] = ()
    schema: Mapping[str, Json] = field(default_factory=dict)  # of `f`, besides its properties
    mode: ReasoningMode = "none"  # how reasoning begins

    @property
    def tools(self) -> ToolSet:
        schema = {"type": "object", "properties": dict(self.properties), **self.schema}
        function = {"name": "f", "parameters": schema}
        others = [{"name": name} for name in ("g", "now", "tool_12", "get_current_time")]
        every = [function, *others]
        return read_tools([{"type": "function", "function": one} for one in every])


def case(
    bug: int,
    report: str,
    form: str,
    properties: Mapping[str, Json],
    text: str,
    expected: Json,
    **more: Any,
) -> Case:
    """`expected` is the arguments of the only call, to `f`, or a list of names and arguments.

    A property given as a word is a schema of that type.
    """
    schemas = {k: {"type": v} if isinstance(v, (str, list)) else v for k, v in properties.items()}
    calls = expected if isinstance(expected, list) else [("f", expected)]
    return Case(bug, report, form, schemas, text, calls, **more)


def glm(name: str = "f", /, **values: str) -> str:
    """A call as GLM-4.7 writes it, from raw values."""
    inside = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items()
    )
    return f"<tool_call>{name}{inside}</tool_call>"


def glm45(name: str = "f", /, **values: str) -> str:
    """A call as GLM-4.5 writes it."""
    inside = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in values.items()
    )
    return f"\n<tool_call>{name}\n{inside}</tool_call>"


def coder(name: str = "f", /, **values: str) -> str:
    """A call as Qwen3-Coder writes it."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def dsml(name: str = "f", /, **values: str) -> str:
    """A call as DeepSeek-V3.2 writes it; a value that begins with `=` is no string."""
    lines = [
        f'<｜DSML｜parameter name="{key}" string="{str(not value.startswith("=")).lower()}">'
        f"{value.removeprefix('=')}</｜DSML｜parameter>"
        for key, value in values.items()
    ]
    inside = "\n".join(lines)
    invoke = f'<｜DSML｜invoke name="{name}">\n{inside}\n</｜DSML｜invoke>'
    return f"\n\n<｜DSML｜function_calls>\n{invoke}\n</｜DSML｜function_calls>"


def hermes(arguments: Json = None, name: str = "f") -> str:
    """A call as Qwen3 writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {_text(arguments)}}}\n</tool_call>'


def llama(arguments: Json = None, name: str = "f") -> str:
    """A call as Llama 3.1 writes it."""
    return f'{{"name": "{name}", "parameters": {_text(arguments)}}}'


def kimi_call(arguments: Json = None, name: str = "f", number: int = 0) -> str:
    head = f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>"
    return f"{head}{_text(arguments)}<|tool_call_end|>"


def kimi(*calls: str) -> str:
    """A section of calls as Kimi-K2 writes it."""
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def deepseek_call(arguments: Json = None, name: str = "f") -> str:
    return f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_text(arguments)}<｜tool▁call▁end｜>"


def deepseek(*calls: str) -> str:
    """A section of calls as DeepSeek-V3.1 writes it."""
    return f"<｜tool▁calls▁begin｜>{''.join(calls)}<｜tool▁calls▁end｜>"


def _text(arguments: Json) -> str:
    """JSON text: given as such, or of a value."""
    if isinstance(arguments, str):
        return arguments
    return json.dumps({} if arguments is None else arguments, ensure_ascii=False)
