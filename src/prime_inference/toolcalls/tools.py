"""Tools and the choice between them, as a caller writes them.

Chat completions nest a function's fields under `function`, Responses writes them flat; both are
read, in `tools` and in `tool_choice`. Names are limited to what every format can carry.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias, TypeVar

import msgspec

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.toolcalls.normalise import Normal, normalise_arguments

# OpenAI allows letters, digits, `_` and `-`; MCP servers also use `.`, `/` and `:`. None of
# them ends a name in any format. OpenAI's limit of 64 is too short for MCP's prefixed names.
_NAME = re.compile(r"[A-Za-z0-9_./:-]{1,128}\Z")

Mode: TypeAlias = Literal["auto", "none", "required"]


class Tool(msgspec.Struct, frozen=True, dict=True):
    """A function that the model may call.

    `parameters` is the caller's JSON Schema; None admits any object. `strict` false lets the
    model write any arguments; omitted or true holds it to the schema.
    """

    name: str
    parameters: object = None
    strict: bool | None = None
    description: str | None = None

    @cached_property
    def normal(self) -> Normal:
        """The arguments' normal form: what grammar and parser go by."""
        return normalise_arguments(self.parameters)


class ToolChoice(msgspec.Struct, frozen=True):
    """Which tools may be called, and whether one must be.

    `names` None allows every tool. `single` asks for exactly one call of one tool.
    """

    mode: Mode = "auto"
    names: tuple[str, ...] | None = None
    single: bool = False


AUTO = ToolChoice()


Constraint = TypeVar("Constraint")

# A client uses a handful of choices with the same tools; one that tries many builds anew.
_MOST_BUILT = 8


class ToolSet:
    """The tools of one request, by name."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.tools = tuple(tools)
        self.by_name = {tool.name: tool for tool in tools}
        self.built: dict[object, object] = {}  # constraints, by what else they depend on

    def kept(
        self, key: object, kind: type[Constraint], build: Callable[[], Constraint]
    ) -> Constraint:
        """What `build` makes, made once for a key, and of one kind for it."""
        built = self.built.get(key)
        if built is None:
            built = build()
            if len(self.built) >= _MOST_BUILT:
                self.built.clear()
            self.built[key] = built
        assert isinstance(built, kind)
        return built

    def get(self, name: str) -> Tool | None:
        return self.by_name.get(name)

    def allowed(self, choice: ToolChoice) -> tuple[Tool, ...]:
        """The tools that the choice leaves, in the caller's order."""
        if choice.names is None:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in choice.names)


class _Text:
    """Bytes that are told apart by all of them and hashed by a few of them.

    To hash 50 KB takes several times as long as to compare them.
    """

    __slots__ = ("_hash", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._hash = hash((len(raw), raw[::64]))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Text) and self.raw == other.raw


def tools_from_json(raw: bytes) -> ToolSet:
    """The tool set in a JSON array; the same bytes give the same object.

    Raises `InvalidRequest`.
    """
    return _known_tools(_Text(raw))


# Agents send the same tools with every turn. A set of 50 KB takes about 1 MB with what is built
# for it. Sets that are made to have one hash cost as many comparisons as are kept.
@lru_cache(maxsize=128)
def _known_tools(text: _Text) -> ToolSet:
    try:
        decoded = msgspec.json.decode(text.raw)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"tools is not JSON: {error}", param="tools") from error
    return read_tools(decoded)


def read_tools(raw: object) -> ToolSet:
    """The tool set in a decoded `tools` field.

    Raises `InvalidRequest`, and `UnsupportedParameter` for tools that are not functions.
    """
    if not isinstance(raw, list):
        raise InvalidRequest("tools must be an array", param="tools")
    tools = [_read_tool(one, f"tools[{index}]") for index, one in enumerate(raw)]
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(f"two tools are named {tool.name!r}", param=f"tools[{index}]")
        seen.add(tool.name)
    return ToolSet(tools)


def _read_tool(raw: object, param: str) -> Tool:
    if not isinstance(raw, dict):
        raise InvalidRequest("a tool must be an object", param=param)
    if raw.get("type", "function") != "function":
        kind = str(raw["type"])[:64]
        raise UnsupportedParameter(f"tools of type {kind!r} are not served", param=f"{param}.type")
    function, at = _function(raw, param)
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.match(name):
        raise InvalidRequest(
            "a tool's name is 1 to 128 letters, digits, or any of _ . / : -", param=f"{at}.name"
        )
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict | bool):
        raise InvalidRequest("parameters must be a JSON Schema", param=f"{at}.parameters")
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise InvalidRequest("strict must be true or false", param=f"{at}.strict")
    description = function.get("description")
    if description is not None and not isinstance(description, str):
        raise InvalidRequest("description must be a string", param=f"{at}.description")
    return Tool(name=name, parameters=parameters, strict=strict, description=description)


def _function(raw: dict[str, object], param: str) -> tuple[dict[str, object], str]:
    """The fields of the function, nested (chat completions) or flat (Responses)."""
    nested = raw.get("function")
    if nested is None:
        return raw, param
    if not isinstance(nested, dict):
        raise InvalidRequest("function must be an object", param=f"{param}.function")
    return nested, f"{param}.function"


def read_choice(raw: object, tools: ToolSet) -> ToolChoice:
    """The tool choice in a decoded `tool_choice` field; None is `auto`.

    Raises `InvalidRequest` for a choice that is malformed or names a tool that is not there.
    """
    if raw is None:
        return AUTO
    if raw in ("auto", "none", "required"):
        choice = ToolChoice(mode=raw)
    elif isinstance(raw, dict) and raw.get("type") == "function":
        name = _chosen_name(raw, tools, "tool_choice")
        choice = ToolChoice(mode="required", names=(name,), single=True)
    elif isinstance(raw, dict) and raw.get("type") == "allowed_tools":
        choice = _read_allowed(raw, tools)
    else:
        raise InvalidRequest(
            "tool_choice is auto, none, required, a function, or allowed_tools",
            param="tool_choice",
        )
    if choice.mode == "required" and not tools.allowed(choice):
        raise InvalidRequest("tool_choice asks for a call, and there are no tools", param="tools")
    return choice


def _read_allowed(raw: dict[str, object], tools: ToolSet) -> ToolChoice:
    nested = raw.get("allowed_tools", raw)
    listed = nested.get("tools") if isinstance(nested, dict) else None
    mode = nested.get("mode", "auto") if isinstance(nested, dict) else None
    if not isinstance(listed, list) or mode not in ("auto", "required"):
        raise InvalidRequest(
            "allowed_tools has a mode, auto or required, and a list of tools",
            param="tool_choice.allowed_tools",
        )
    names = tuple(
        _chosen_name(one, tools, f"tool_choice.allowed_tools.tools[{index}]")
        for index, one in enumerate(listed)
    )
    return ToolChoice(mode="required" if mode == "required" else "auto", names=names)


def _chosen_name(raw: object, tools: ToolSet, param: str) -> str:
    fields = raw.get("function", raw) if isinstance(raw, dict) else None
    name = fields.get("name") if isinstance(fields, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("the function to call needs a name", param=param)
    if name not in tools.by_name:
        hint = did_you_mean(name, tools.by_name)
        raise InvalidRequest(f"no tool is named {name[:128]!r}.{hint}", param=param)
    return name
