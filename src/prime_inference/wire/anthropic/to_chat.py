"""A Messages request as the chat request that the gateway serves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from prime_inference.domain.errors import ApiError, InvalidRequest, UnsupportedParameter
from prime_inference.wire.anthropic import blocks as theirs
from prime_inference.wire.anthropic.blocks import (
    Base64Source,
    ImageBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from prime_inference.wire.anthropic.request import (
    CountRequest,
    MessagesRequest,
    OutputConfig,
    Thinking,
    Tool,
    ToolChoice,
)
from prime_inference.wire.openai import chat_request as chat
from prime_inference.wire.openai.chat_request import (
    AssistantMessage,
    ChatRequest,
    ContentPart,
    Effort,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonSchema,
    JsonSchemaFormat,
    NamedFunction,
    NamedToolChoice,
    StreamOptions,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolMode,
    UserMessage,
)
from prime_inference.wire.openai.decode import relocated

NAMES = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "thinking",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}
"""Fields of the chat request and the ones that they were made of."""

TOOL_ERROR = "[tool error]\n"
"""Stands before the result of a tool that failed: chat messages have no other place for it."""

EFFORTS: tuple[tuple[int, Effort], ...] = ((4096, "low"), (16_384, "medium"))
"""Budgets below which a thinking budget is that effort; above, high. Engines take no budget;
the steps are those between Anthropic's least (1,024), what it recommends to begin with (16k)
and what agents ask for at most (32k)."""

_json = msgspec.json.Decoder()


def to_chat(request: CountRequest, tools: Sequence[Tool]) -> ChatRequest:
    """Raises InvalidRequest, UnsupportedParameter."""
    messages: list[chat.Message] = []
    if request.system:
        messages.append(SystemMessage(content=_texts(request.system)))
    for number, message in enumerate(request.messages):
        _add(messages, message, f"messages[{number}].content")
    if isinstance(request.messages[-1], theirs.AssistantMessage):
        raise UnsupportedParameter(
            "The last message is the assistant's: answers are not continued from a prefill here.",
            param=f"messages[{len(request.messages) - 1}]",
        )
    choice = request.tool_choice
    config = request.output_config
    asked = ChatRequest(
        model=request.model,
        messages=messages,
        tools=[_tool(tool) for tool in tools] or None,
        tool_choice=_choice(choice),
        parallel_tool_calls=False if choice and choice.disable_parallel_tool_use else None,
        reasoning_effort=_effort(request.thinking, config),
        response_format=_format(config),
    )
    if isinstance(request, MessagesRequest):
        asked.max_tokens = request.max_tokens
        asked.stop = request.stop_sequences
        asked.stream = request.stream
        # the last events of a message carry the counts
        asked.stream_options = StreamOptions(include_usage=True) if request.stream else None
        asked.temperature = request.temperature
        asked.top_k = request.top_k or None  # 0 is no limit, as is nothing
        asked.top_p = request.top_p
        asked.user = request.metadata.user_id if request.metadata else None
    return asked


def renamed(error: ApiError) -> ApiError:
    """An error about the chat request as one about the client's own."""
    param = error.param
    if param is None:
        return error
    if param.startswith("messages["):
        return relocated(error, "messages")  # system and tool results have moved the numbers
    if param.startswith("tools["):
        ours = param.replace(".function.parameters", ".input_schema").replace(".function", "")
        return relocated(error, ours)
    if param.startswith("tool_choice."):
        return relocated(error, "tool_choice.name")
    return relocated(error, NAMES[param]) if param in NAMES else error


# -- messages


def _add(messages: list[chat.Message], message: theirs.Message, param: str) -> None:
    content = message.content
    if isinstance(message, theirs.SystemMessage):
        messages.append(SystemMessage(content=_texts(message.content)))
    elif isinstance(message, theirs.AssistantMessage):
        messages.append(_assistant(message, param))
    elif isinstance(content, str):
        messages.append(UserMessage(content=content))
    else:
        _add_user(messages, message, param)


def _add_user(messages: list[chat.Message], message: theirs.UserMessage, param: str) -> None:
    """Results of tools are messages of their own, before what the user says besides."""
    parts: list[ContentPart] = []
    for index, block in enumerate(message.content):
        here = f"{param}[{index}]"
        if isinstance(block, ToolResultBlock):
            if parts:
                raise InvalidRequest(
                    f"'{here}': tool_result blocks come before all others of a message.",
                    param=here,
                )
            messages.append(_result(block, here))
        elif isinstance(block, TextBlock):
            parts.append(TextPart(text=block.text))
        elif isinstance(block, ImageBlock):
            parts.append(_image(block))
    if parts:
        messages.append(UserMessage(content=parts))


def _result(block: ToolResultBlock, param: str) -> ToolMessage:
    mark = TOOL_ERROR if block.is_error else ""
    if block.content is None or isinstance(block.content, str):
        return ToolMessage(content=mark + (block.content or ""), tool_call_id=block.tool_use_id)
    parts = [TextPart(text=mark)] if mark else []
    for index, part in enumerate(block.content):
        if not isinstance(part, TextBlock):
            where = f"{param}.content[{index}]"
            raise UnsupportedParameter(
                f"'{where}': results of tools are taken as text only.", param=where
            )
        parts.append(TextPart(text=part.text))
    return ToolMessage(content=parts, tool_call_id=block.tool_use_id)


def _assistant(message: theirs.AssistantMessage, param: str) -> AssistantMessage:
    if isinstance(message.content, str):
        return AssistantMessage(content=message.content)
    turn = AssistantMessage()
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for index, block in enumerate(message.content):
        if isinstance(block, TextBlock):
            texts.append(block.text)
        elif isinstance(block, ThinkingBlock):
            thoughts.append(block.thinking)
        else:
            calls.append(_call(block, f"{param}[{index}].input"))
    turn.content = "".join(texts) or None
    if thoughts:
        turn.reasoning_content = "".join(thoughts)
    if calls:
        turn.tool_calls = calls
    elif turn.content is None:
        turn.content = ""
    return turn


def _call(block: ToolUseBlock, param: str) -> ToolCall:
    raw = bytes(block.input)
    try:
        value = _json.decode(raw)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidRequest(f"'{param}' must be an object.", param=param)
    # the text as it came: numbers beyond 2^53 and the order of keys stay what they are
    return ToolCall(id=block.id, function=FunctionCall(name=block.name, arguments=raw.decode()))


def _texts(content: str | Iterable[TextBlock]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(text=block.text) for block in content]


def _image(block: ImageBlock) -> ImagePart:
    source = block.source
    if isinstance(source, Base64Source):
        return ImagePart(image_url=ImageUrl(url=f"data:{source.media_type};base64,{source.data}"))
    return ImagePart(image_url=ImageUrl(url=source.url))


# -- tools, thinking, formats


def _tool(tool: Tool) -> chat.Tool:
    definition = FunctionDefinition(name=tool.name, parameters=tool.input_schema)
    if tool.description is not None:
        definition.description = tool.description
    if tool.strict is not None:
        definition.strict = tool.strict
    return chat.Tool(function=definition)


def _choice(choice: ToolChoice | None) -> ToolMode | NamedToolChoice | None:
    if choice is None:
        return None
    if choice.type == "tool":
        if choice.name is None:
            raise InvalidRequest(
                "Missing required parameter: 'tool_choice.name'.", param="tool_choice.name"
            )
        return NamedToolChoice(function=NamedFunction(name=choice.name))
    return "required" if choice.type == "any" else choice.type


def _effort(thinking: Thinking | None, config: OutputConfig | None) -> Effort | None:
    """Thinking and effort in the one word that engines take."""
    if thinking is not None and thinking.type == "disabled":
        return "none"
    if config is not None and config.effort is not None:
        return config.effort
    if thinking is None or thinking.budget_tokens is None:
        return None
    for limit, effort in EFFORTS:
        if thinking.budget_tokens < limit:
            return effort
    return "high"


def _format(config: OutputConfig | None) -> JsonSchemaFormat | None:
    if config is None or config.format is None:
        return None
    schema = JsonSchema(name="answer", schema_=config.format.schema, strict=True)
    return JsonSchemaFormat(json_schema=schema)
