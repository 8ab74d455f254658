"""Items of a conversation, as `input` takes them and `output` plays them back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from prime_inference.domain.errors import InvalidRequest, UnsupportedParameter
from prime_inference.wire.openai.bounds import MAX_MESSAGES
from prime_inference.wire.openai.decode import decode_at

Status = Literal["in_progress", "completed", "incomplete"]


class Closed(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A type that refuses fields it does not know and writes no field that was not set."""


class InputText(Closed, tag_field="type", tag="input_text"):
    text: str


class InputImage(Closed, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: Literal["auto", "low", "high"] | None = None
    file_id: str | None = None


class InputFile(Closed, tag_field="type", tag="input_file"):
    file_id: str | None = None
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: str | None = None


class OutputText(Closed, tag_field="type", tag="output_text"):
    """As an answer had it. Annotations and logprobs are not the model's words: not sent on."""

    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class Refusal(Closed, tag_field="type", tag="refusal"):
    refusal: str


Part = InputText | InputImage | InputFile | OutputText | Refusal


class MessageItem(Closed):
    """A message; `type` may be left out. `id` and `status` are an answer's, played back."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Part]
    type: Literal["message"] = "message"
    id: str | None = None
    status: Status | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Closed):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    namespace: UnsetType | None = UNSET
    caller: UnsetType | None = UNSET


class FunctionOutputItem(Closed):
    """What a tool returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Part]
    id: str | None = None
    status: Status | None = None
    caller: UnsetType | None = UNSET


class ReasoningText(Closed):
    text: str
    type: Literal["reasoning_text", "text"] = "reasoning_text"


class SummaryText(Closed):
    text: str
    type: Literal["summary_text"] = "summary_text"


class ReasoningItem(Closed):
    """Reasoning that an answer of ours had; a summary alone is not what the model thought."""

    type: Literal["reasoning"]
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None
    id: str | None = None
    status: Status | None = None


Item = MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem
Items = Annotated[list[Raw], Meta(min_length=1, max_length=MAX_MESSAGES)]


class _Kind(Struct):
    type: str | None = None


_kind = msgspec.json.Decoder(_Kind)
_decoders: dict[str | None, msgspec.json.Decoder[Any]] = {
    None: msgspec.json.Decoder(MessageItem),
    "message": msgspec.json.Decoder(MessageItem),
    "function_call": msgspec.json.Decoder(FunctionCallItem),
    "function_call_output": msgspec.json.Decoder(FunctionOutputItem),
    "reasoning": msgspec.json.Decoder(ReasoningItem),
}


def decode_items(raw: list[Raw]) -> list[Item]:
    """Raises InvalidRequest, and UnsupportedParameter for a kind of item that is not served."""
    return [_decode_item(item, f"input[{index}]") for index, item in enumerate(raw)]


def _decode_item(raw: Raw, param: str) -> Item:
    try:
        kind = _kind.decode(raw).type
    except (ValueError, RecursionError):
        raise InvalidRequest(f"'{param}' is not an input item.", param=param) from None
    decoder = _decoders.get(kind)
    if decoder is None:
        raise UnsupportedParameter(
            f"'{param}.type': items of type '{str(kind)[:64]}' are not supported here.",
            param=f"{param}.type",
        )
    item: Item = decode_at(decoder, raw, param)
    return item
