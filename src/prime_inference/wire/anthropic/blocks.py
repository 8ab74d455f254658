"""Content blocks of messages, as requests carry them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from prime_inference.wire.openai.bounds import MAX_MESSAGES


class Closed(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A type that refuses fields it does not know and writes no field that was not set."""


class CacheControl(Closed):
    """A hint of what will come again. Engines keep every prefix, so it changes nothing."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class Block(Closed, tag_field="type"):
    cache_control: CacheControl | None = None


class TextBlock(Block, tag="text", kw_only=True):
    """`citations` are an answer's, played back: not the model's words, so not sent on."""

    text: str
    citations: list[Any] | None = None


class Base64Source(Closed, tag_field="type", tag="base64"):
    data: str
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]


class UrlSource(Closed, tag_field="type", tag="url"):
    url: str


class ImageBlock(Block, tag="image", kw_only=True):
    source: Base64Source | UrlSource


class ThinkingBlock(Block, tag="thinking", kw_only=True):
    """What the model thought. The signature is not looked at: the text is the model's input."""

    thinking: str
    signature: str = ""


class DirectCaller(Closed):
    type: Literal["direct"]


class ToolUseBlock(Block, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: Raw
    caller: DirectCaller | None = None
    toolset_name: UnsetType | None = UNSET


class ToolResultBlock(Block, tag="tool_result", kw_only=True):
    tool_use_id: str
    content: str | list[TextBlock | ImageBlock] | None = None
    is_error: bool = False
    toolset_name: UnsetType | None = UNSET


UserBlock = TextBlock | ImageBlock | ToolResultBlock
AssistantBlock = TextBlock | ThinkingBlock | ToolUseBlock


class _Message(Closed, tag_field="role"):
    pass


class UserMessage(_Message, tag="user"):
    content: str | list[UserBlock]


class AssistantMessage(_Message, tag="assistant"):
    content: str | list[AssistantBlock]


class SystemMessage(_Message, tag="system"):
    """Instructions in the midst of a conversation."""

    content: str | list[TextBlock]


Message = UserMessage | AssistantMessage | SystemMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
