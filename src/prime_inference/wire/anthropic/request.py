"""`POST /messages` and `/messages/count_tokens`: the requests, closed and bounded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.wire.anthropic.blocks import CacheControl, Closed, Messages, TextBlock
from prime_inference.wire.openai.bounds import MAX_STOPS, MAX_TOOLS
from prime_inference.wire.openai.chat_request import Opaque, Probability, Stop, TokenCount
from prime_inference.wire.openai.decode import decode, decode_at

MIN_BUDGET = 1024  # Anthropic's least

REFUSED = (
    "billing_policy", "compaction", "container", "diagnostics", "fallback_credit_token",
    "fallbacks", "inference_geo", "mcp_servers", "thread",
)  # fmt: skip
"""Fields of Anthropic's that nothing here can honour."""

ELSEWHERE = 'For the tier "flex" ask /chat/completions or /responses.'

NO_THREADS = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
"""By this Anthropic's SDKs learn to send the whole conversation at every turn."""


class Tool(Closed):
    """A tool of the client's. `eager_input_streaming` is about pace: input always streams."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    input_schema: Raw
    description: str | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(Closed):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Closed):
    """`adaptive` leaves to the model how much; a budget becomes an effort (docs/dialects.md)."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=MIN_BUDGET)] | None = None
    display: Literal["summarized"] | None = None


class OutputFormat(Closed):
    type: Literal["json_schema"]
    schema: Raw


class OutputConfig(Closed):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class AllTurns(Closed):
    type: Literal["all"]


class KeepThinking(Closed):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | AllTurns


class ContextManagement(Closed):
    """Edits that leave the conversation as it is; agents send them with every request."""

    edits: list[KeepThinking] | None = None


class Metadata(Closed):
    user_id: Opaque | None = None


class CountRequest(Closed):
    """What counts: everything that becomes the model's input."""

    model: Annotated[str, Meta(min_length=1, max_length=256)]
    messages: Messages
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[Raw], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None
    compaction: Any = None
    context_management: ContextManagement | None = None
    mcp_servers: Any = None
    thread: Any = None


class MessagesRequest(CountRequest, kw_only=True):
    """All of Anthropic's parameters; a parameter given as null is one not given."""

    max_tokens: TokenCount
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    stop_sequences: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: Probability | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    top_p: Probability | None = None
    billing_policy: Any = None
    container: Any = None
    diagnostics: Any = None
    fallback_credit_token: Any = None
    fallbacks: Any = None
    inference_geo: Any = None


class _ToolKind(msgspec.Struct):
    type: str | None = None


_messages = msgspec.json.Decoder(MessagesRequest)
_count = msgspec.json.Decoder(CountRequest)
_tool = msgspec.json.Decoder(Tool)
_tool_kind = msgspec.json.Decoder(_ToolKind)


def decode_messages_request(body: bytes) -> MessagesRequest:
    """Decode and check what the types cannot say. Raises InvalidRequest."""
    try:
        request = decode(_messages, body)
    except InvalidRequest as error:
        if error.param == "service_tier":
            raise InvalidRequest(f"{error.message} {ELSEWHERE}", param=error.param) from None
        raise
    _check(request)
    thinking = request.thinking
    if thinking is not None and (thinking.budget_tokens or 0) >= request.max_tokens:
        raise InvalidRequest(
            "'max_tokens' has to be greater than 'thinking.budget_tokens'.", param="max_tokens"
        )
    return request


def decode_count_request(body: bytes) -> CountRequest:
    """Decode and check what the types cannot say. Raises InvalidRequest."""
    request = decode(_count, body)
    _check(request)
    return request


def decode_tools(raw: list[Raw]) -> list[Tool]:
    """Raises InvalidRequest, and UnsupportedParameter for a tool that is not the client's own."""
    return [_decode_tool(tool, f"tools[{index}]") for index, tool in enumerate(raw)]


def _check(request: CountRequest) -> None:
    for name in REFUSED:
        if getattr(request, name, None) is not None:
            details = NO_THREADS if name == "thread" else None
            raise UnsupportedParameter(
                f"'{name}' is not supported here.", param=name, details=details
            )
    thinking = request.thinking
    if thinking is not None and (thinking.type == "enabled") != (
        thinking.budget_tokens is not None
    ):
        raise InvalidRequest(
            "'thinking.budget_tokens' goes with 'thinking.type' enabled, and only with it.",
            param="thinking.budget_tokens",
        )


def _decode_tool(raw: Raw, param: str) -> Tool:
    try:
        kind = _tool_kind.decode(raw).type
    except (ValueError, RecursionError):
        raise InvalidRequest(f"'{param}' is not a tool.", param=param) from None
    if kind not in (None, "custom"):
        raise UnsupportedParameter(
            f"'{param}.type': tools of type '{kind[:64]}' are not supported here; custom ones are.",
            param=f"{param}.type",
        )
    return decode_at(_tool, raw, param)
