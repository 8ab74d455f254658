"""Tools and calls written into messages, for models whose chat template knows of none.

The system message ends with the tools, one JSON object a line between `<tools>` tags, and with
an example of a call in the model's format. An assistant's calls stand behind its text as the
model wrote them, arguments byte for byte. Results of one turn are a user's message, each
between `<tool_response>` tags. Where the markers differ from Hermes', the format's own stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from prime_inference.domain.errors import InvalidRequest
from prime_inference.toolcalls.format import ToolFormat
from prime_inference.toolcalls.json_rules import Unwritable
from prime_inference.wire.openai.chat_request import (
    AssistantMessage,
    DeveloperMessage,
    Message,
    SystemMessage,
    TextPart,
    Tool,
    ToolMessage,
    UserMessage,
)

INTRODUCTION = "You can call these functions. Each line describes one, with a JSON schema:"
HOW_TO_CALL = "To call a function, write its name and its arguments in this form:"
SEVERAL = "To call several, write one call after the other. The results come in the next message."


def with_tools(
    messages: Sequence[Message], tools: Sequence[Tool], form: ToolFormat
) -> list[Message]:
    """The messages with everything about tools written as text. Raises InvalidRequest."""
    written = list(_turns(messages, form))
    if not tools:
        return written
    part = tool_part(tools, form)
    first = written[0]
    if not isinstance(first, SystemMessage | DeveloperMessage):
        return [SystemMessage(content=part), *written]
    first = msgspec.structs.replace(first, content=f"{_text(first.content)}\n\n{part}")
    return [first, *written[1:]]


def tool_part(tools: Sequence[Tool], form: ToolFormat) -> str:
    """What the system message says of the tools."""
    lines = [msgspec.json.encode(tool).decode() for tool in tools]
    example = form.render_all([("NAME", {"ARGUMENT": "VALUE"})])
    return "\n".join(
        [INTRODUCTION, "<tools>", *lines, "</tools>", "", HOW_TO_CALL, example, "", SEVERAL]
    )


def _turns(messages: Sequence[Message], form: ToolFormat) -> Iterator[Message]:
    results: list[str] = []
    for index, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            text = _text(message.content)
            results.append(f"<tool_response>\n{text}\n</tool_response>")
            continue
        if results:
            yield UserMessage(content="\n".join(results))
            results = []
        if isinstance(message, AssistantMessage) and message.tool_calls:
            yield _with_calls(message, form, f"messages[{index}]")
        else:
            yield message
    if results:
        yield UserMessage(content="\n".join(results))


def _with_calls(message: AssistantMessage, form: ToolFormat, param: str) -> AssistantMessage:
    assert message.tool_calls
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls]
    try:
        text = form.replay_all(calls)
    except (ValueError, Unwritable):
        raise InvalidRequest(
            "The arguments of an earlier call cannot be written in this model's format.",
            param=f"{param}.tool_calls",
        ) from None
    said = _text(message.content or "")
    return AssistantMessage(content=f"{said}\n{text}" if said else text)


def _text(content: str | Sequence[object]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content if isinstance(part, TextPart))
