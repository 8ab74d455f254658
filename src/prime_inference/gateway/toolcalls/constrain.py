"""What a deployment is sent whose raw text the gateway reads: prompt and constraint."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from prime_inference.domain.models import EngineKind, GatewayParser
from prime_inference.gateway.toolcalls.prompt import with_tools
from prime_inference.gateway.toolcalls.request import RequestTools
from prime_inference.toolcalls.constraint import Gbnf, StructuralTag, gbnf, structural_tag
from prime_inference.toolcalls.format import format_named

TOOL_PARAMETERS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
"""Parameters that every deployment honours whose raw text the gateway reads."""


def constrain(
    body: dict[str, Any], tools: RequestTools | None, parser: GatewayParser, engine: EngineKind
) -> None:
    """Write `body`'s tools anew: as text or for the template, with a constraint on the answer.

    Raises InvalidRequest for an earlier call that the format cannot hold.
    """
    for name in TOOL_PARAMETERS:
        body.pop(name, None)
    if parser.prompt == "gateway":
        definitions = tools.definitions if tools is not None else []
        body["messages"] = with_tools(body["messages"], definitions, format_named(parser.format))
    elif tools is not None:
        body["tools"] = tools.definitions
        body["tool_choice"] = "none"  # the template writes them, and no parser looks for calls
    if tools is None:
        return
    if tools.choice.mode == "required":
        body.pop("response_format", None)  # there will be calls, and no content to have a format
    built = constraint(tools, parser, engine)
    if isinstance(built, Gbnf):
        # On its route for chat, llama.cpp's server does not look at `grammar_lazy`: what it is
        # given applies from the first token on.
        if built.whole is not None:
            body["grammar"] = built.whole
        return
    body["skip_special_tokens"] = False  # the markers of most formats are tokens of their own
    if built.tag is not None:
        body["response_format"] = Raw(built.encoded)


def constraint(
    tools: RequestTools, parser: GatewayParser, engine: EngineKind
) -> Gbnf | StructuralTag:
    """What the model may write, as the engine takes it; kept with the tools."""
    build = gbnf if engine == "llama.cpp" else structural_tag
    return build(
        format_named(parser.format),
        tools.tool_set,
        tools.choice,
        parallel=tools.parallel,
        reasoning=parser.reasoning,
    )
