"""A Responses request as the chat request that the gateway serves.

Items of the model's that follow each other (reasoning, text, calls) are one assistant
message: so a chat answer that became items becomes the same message again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct

from prime_inference.domain.errors import ApiError, InvalidRequest, UnsupportedParameter
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.wire.openai.chat_request import (
    AllowedTools,
    AllowedToolsChoice,
    AssistantMessage,
    ChatRequest,
    ContentPart,
    DeveloperMessage,
    FunctionCall,
    FunctionDefinition,
    ImagePart,
    ImageUrl,
    JsonObjectFormat,
    JsonSchema,
    JsonSchemaFormat,
    Message,
    NamedFunction,
    NamedToolChoice,
    ResponseFormat,
    StreamOptions,
    SystemMessage,
    TextPart,
    Tool,
    ToolCall,
    ToolMessage,
    ToolMode,
    UserMessage,
)
from prime_inference.wire.openai.decode import relocated
from prime_inference.wire.responses.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Part,
    ReasoningItem,
    Refusal,
)
from prime_inference.wire.responses.reasoning import unsealed
from prime_inference.wire.responses.request import (
    FunctionTool,
    ResponsesRequest,
    TextFormat,
    ToolChoice,
)

NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning.effort",
    "verbosity": "text.verbosity",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
}
"""Fields of the chat request and the ones that they were made of."""


class Conversation(Struct):
    """What was said before this request, and what it adds."""

    before: Sequence[Item]
    added: Sequence[Item]


def to_chat(
    request: ResponsesRequest, conversation: Conversation, tools: Sequence[FunctionTool]
) -> ChatRequest:
    """Raises InvalidRequest, UnsupportedParameter."""
    messages: list[Message] = []
    if request.instructions:
        messages.append(SystemMessage(content=request.instructions))
    for number, item in enumerate(conversation.before):
        _add(messages, item, f"previous_response_id[{number}]")
    for number, item in enumerate(conversation.added):
        _add(messages, item, f"input[{number}]")
    if not messages:
        raise InvalidRequest("'input' has nothing in it to answer.", param="input")
    reasoning, text = request.reasoning, request.text
    return ChatRequest(
        model=request.model,
        messages=messages,
        max_completion_tokens=request.max_output_tokens,
        parallel_tool_calls=request.parallel_tool_calls,
        prompt_cache_key=request.prompt_cache_key,
        reasoning_effort=reasoning.effort if reasoning is not None else None,
        response_format=_format(text.format) if text is not None and text.format else None,
        safety_identifier=request.safety_identifier,
        service_tier=request.service_tier,
        stream=request.stream,
        # the last event of a response carries the counts, whether asked for or not
        stream_options=StreamOptions(include_usage=True) if request.stream else None,
        temperature=request.temperature,
        tool_choice=_choice(request.tool_choice, tools),
        tools=[_tool(tool) for tool in tools] or None,
        top_p=request.top_p,
        user=request.user,
        verbosity=text.verbosity if text is not None else None,
    )


def renamed(error: ApiError) -> ApiError:
    """An error about the chat request as one about the client's own."""
    param = error.param
    if param is None:
        return error
    if param.startswith("messages["):
        return relocated(error, "input")
    if param.startswith("tools["):
        return relocated(error, param.replace(".function", "", 1))
    if param.startswith("tool_choice."):
        return relocated(error, "tool_choice")
    return relocated(error, NAMES[param]) if param in NAMES else error


# -- messages


def _add(messages: list[Message], item: Item, param: str) -> None:
    if isinstance(item, FunctionOutputItem):
        content = _texts(item.output, f"{param}.output")
        messages.append(ToolMessage(content=content, tool_call_id=item.call_id))
    elif isinstance(item, FunctionCallItem):
        turn = _turn(messages, new=False)
        function = FunctionCall(name=item.name, arguments=item.arguments)
        calls = turn.tool_calls or []
        turn.tool_calls = [*calls, ToolCall(id=item.call_id, function=function)]
    elif isinstance(item, ReasoningItem):
        _add_reasoning(messages, item, param)
    elif item.role == "assistant":
        _add_answer(messages, item, f"{param}.content")
    elif item.role == "user":
        messages.append(UserMessage(content=_parts(item.content, f"{param}.content")))
    else:
        kind = SystemMessage if item.role == "system" else DeveloperMessage
        messages.append(kind(content=_texts(item.content, f"{param}.content")))


def _turn(messages: list[Message], *, new: bool) -> AssistantMessage:
    """The model's turn that an item belongs to: the last message, or one made for it."""
    last = messages[-1] if messages else None
    if isinstance(last, AssistantMessage) and not new:
        return last
    turn = AssistantMessage()
    messages.append(turn)
    return turn


def _add_reasoning(messages: list[Message], item: ReasoningItem, param: str) -> None:
    if item.content:
        text = "".join(part.text for part in item.content)
    elif item.encrypted_content:
        text = unsealed(item.encrypted_content, f"{param}.encrypted_content")
    else:
        return  # an item with a summary only: nothing of the reasoning itself is there
    last = messages[-1] if messages else None
    begun = isinstance(last, AssistantMessage) and bool(last.content or last.tool_calls)
    turn = _turn(messages, new=begun)
    turn.reasoning_content = (turn.reasoning_content or "") + text


def _add_answer(messages: list[Message], item: MessageItem, param: str) -> None:
    text, refusal = _answer(item.content, param)
    last = messages[-1] if messages else None
    # two texts in a row were two messages; a text after calls belongs to their turn
    begun = isinstance(last, AssistantMessage) and last.content and text and not last.tool_calls
    turn = _turn(messages, new=bool(begun))
    assert turn.content is None or isinstance(turn.content, str)
    turn.content = (turn.content or "") + text
    if refusal:
        turn.refusal = refusal


def _answer(content: str | list[Part], param: str) -> tuple[str, str]:
    """Text and refusal of a message of the model's."""
    if isinstance(content, str):
        return content, ""
    texts, refusals = [], []
    for index, part in enumerate(content):
        if isinstance(part, OutputText | InputText):
            texts.append(part.text)
        elif isinstance(part, Refusal):
            refusals.append(part.refusal)
        else:
            raise InvalidRequest(
                f"'{param}[{index}]': a message of the assistant's is text.",
                param=f"{param}[{index}]",
            )
    return "".join(texts), "".join(refusals)


def _texts(content: str | list[Part], param: str) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [_text(part, f"{param}[{index}]") for index, part in enumerate(content)]


def _text(part: Part, param: str) -> TextPart:
    if isinstance(part, InputText | OutputText):
        return TextPart(text=part.text)
    raise UnsupportedParameter(f"'{param}': only text is supported here.", param=param)


def _parts(content: str | list[Part], param: str) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    return [_part(part, f"{param}[{index}]") for index, part in enumerate(content)]


def _part(part: Part, param: str) -> ContentPart:
    if isinstance(part, InputText | OutputText):
        return TextPart(text=part.text)
    if isinstance(part, InputImage):
        if part.image_url is None or part.file_id is not None:
            raise UnsupportedParameter(
                f"'{param}': an image is taken as 'image_url' only.", param=param
            )
        return ImagePart(image_url=ImageUrl(url=part.image_url, detail=part.detail or UNSET))
    if isinstance(part, Refusal):
        raise InvalidRequest(f"'{param}': only the assistant refuses.", param=param)
    raise UnsupportedParameter(f"'{param}': files are not supported here.", param=param)


# -- tools and formats


def _choice(
    choice: ToolMode | ToolChoice | None, tools: Sequence[FunctionTool]
) -> ToolMode | NamedToolChoice | AllowedToolsChoice | None:
    if not isinstance(choice, ToolChoice):
        return choice
    if choice.type == "function":
        if choice.name is None:
            raise InvalidRequest(
                "Missing required parameter: 'tool_choice.name'.", param="tool_choice.name"
            )
        return _named(choice.name)
    if not choice.tools:
        raise InvalidRequest(
            "'tool_choice.tools' has to name functions that are among 'tools'.",
            param="tool_choice.tools",
        )
    known = {tool.name for tool in tools}
    for index, tool in enumerate(choice.tools):
        if tool.name not in known:
            raise InvalidRequest(
                "'tool_choice' names a function that is not among 'tools'."
                f"{did_you_mean(tool.name, known)}",
                param=f"tool_choice.tools[{index}].name",
            )
    allowed = AllowedTools(
        mode=choice.mode or "auto", tools=[_named(tool.name) for tool in choice.tools]
    )
    return AllowedToolsChoice(allowed_tools=allowed)


def _named(name: str) -> NamedToolChoice:
    return NamedToolChoice(function=NamedFunction(name=name))


def _tool(tool: FunctionTool) -> Tool:
    definition = FunctionDefinition(name=tool.name, parameters=tool.parameters)
    if tool.description is not None:
        definition.description = tool.description
    if tool.strict is not None:
        definition.strict = tool.strict
    return Tool(function=definition)


def _format(wanted: TextFormat) -> ResponseFormat | None:
    if wanted.type == "json_object":
        return JsonObjectFormat()
    if wanted.type == "text":
        return None
    if wanted.name is None or wanted.schema is UNSET:
        missing = "text.format.name" if wanted.name is None else "text.format.schema"
        raise InvalidRequest(f"Missing required parameter: '{missing}'.", param=missing)
    schema = JsonSchema(name=wanted.name, schema_=wanted.schema)
    if wanted.description is not None:
        schema.description = wanted.description
    if wanted.strict is not None:
        schema.strict = wanted.strict
    return JsonSchemaFormat(json_schema=schema)
