"""The tools of one request, read when something needs them: most answers hold no call."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cached_property

import msgspec

from prime_inference.domain.models import Deployment
from prime_inference.toolcalls.tools import (
    Tool,
    ToolChoice,
    ToolSet,
    read_choice,
    read_tools,
    tools_from_json,
)
from prime_inference.wire.openai.chat_request import (
    AllowedToolsChoice,
    ChatRequest,
    NamedToolChoice,
)
from prime_inference.wire.openai.chat_request import Tool as Definition

REMEMBERED_BYTES = 64 * 1024  # tool sets up to this size are kept ready: 100 typical tools


class RequestTools:
    """`tools`, `tool_choice` and `parallel_tool_calls` of one request that has tools.

    `objects`: the client's dialect can be told no arguments but objects.
    """

    def __init__(self, request: ChatRequest, *, objects: bool = False) -> None:
        self.definitions = request.tools or []
        self.parallel = request.parallel_tool_calls is not False
        self.stops = bool(request.stop)
        self.objects = objects
        self._choice = request.tool_choice

    @property
    def only(self) -> str | None:
        """The function that the caller named, if any."""
        return self._choice.function.name if isinstance(self._choice, NamedToolChoice) else None

    @property
    def must_call(self) -> bool:
        """Whether an answer without a call is none."""
        if isinstance(self._choice, AllowedToolsChoice):
            return self._choice.allowed_tools.mode == "required"
        return self._choice == "required" or self.only is not None

    @property
    def must_not_call(self) -> bool:
        """Whether the answer may have no call, whatever the model writes."""
        return self._choice == "none"

    @property
    def allowed(self) -> frozenset[str] | None:
        """The functions that may be called, where the caller has listed some."""
        choice = self._choice
        return frozenset(choice.names) if isinstance(choice, AllowedToolsChoice) else None

    @property
    def callable(self) -> list[Definition]:
        """Definitions of what may be called: all that an engine without such a choice is sent."""
        allowed = self.allowed
        if allowed is None:
            return self.definitions
        return [tool for tool in self.definitions if tool.function.name in allowed]

    @cached_property
    def raw(self) -> bytes:
        """The definitions as JSON."""
        return msgspec.json.encode(self.definitions)

    @property
    def is_large(self) -> bool:
        """Whether reading them takes too long for the event loop: 3 ms for 64 KB."""
        return len(self.raw) > REMEMBERED_BYTES

    @cached_property
    def tool_set(self) -> ToolSet:
        """The same definitions give the same set, unless they are large."""
        if self.is_large:
            return read_tools(msgspec.json.decode(self.raw))
        return tools_from_json(self.raw)

    def called(self, names: Iterable[str]) -> dict[str, Tool]:
        """Those callable that have one of the names; of a large set, only they are read."""
        if not self.is_large and self.allowed is None:
            return self.tool_set.by_name
        wanted = set(names)
        if self.allowed is not None:
            wanted &= self.allowed
        if not self.is_large:
            return {name: self.tool_set.by_name[name] for name in wanted}
        found = [tool for tool in self.definitions if tool.function.name in wanted]
        return read_tools(msgspec.json.decode(msgspec.json.encode(found))).by_name

    @cached_property
    def choice(self) -> ToolChoice:
        if self.only is not None:
            return ToolChoice("required", (self.only,), single=True)
        if isinstance(self._choice, AllowedToolsChoice):
            return ToolChoice(self._choice.allowed_tools.mode, self._choice.names)
        return read_choice(self._choice, self.tool_set)

    def missing(self, parameters: Collection[str], deployment: Deployment) -> str | None:
        """A parameter that cannot be honoured where the gateway constrains the answer."""
        free = self.choice.mode != "required"
        return "response_format" if free and "response_format" in parameters else None
