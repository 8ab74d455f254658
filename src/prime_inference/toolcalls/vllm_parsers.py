"""Our parsers as vLLM's: constraint for the request, calls from the answer.

Written against vLLM 0.32 (`vllm.tool_parsers.ToolParser`). vLLM makes one of a request; it finds
the class by its name (vllm_plugin.py). Reasoning is left to vLLM's own parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar
from uuid import uuid4

import msgspec
from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.sampling_params import StructuredOutputsParams
from vllm.tool_parsers.abstract_tool_parser import ToolParser

from prime_inference.toolcalls.call_sink import judged_elsewhere
from prime_inference.toolcalls.constraint import structural_tag
from prime_inference.toolcalls.events import ArgumentsPart, CallBegun, Content, Event, collect
from prime_inference.toolcalls.format import ToolFormat, load
from prime_inference.toolcalls.parser import Parser
from prime_inference.toolcalls.tools import ToolSet, read_choice, tools_from_json
from prime_inference.toolcalls.vllm_plugin import class_name


class PrimeToolParser(ToolParser):  # type: ignore[misc]  # vLLM is not there when types are checked
    """Reads one answer in one format."""

    form: ClassVar[ToolFormat]
    supports_required_and_named = False  # not as bare JSON: in the model's own format
    engine_based_streaming = True  # each delta once, and `finish_streaming` at the end

    def __init__(self, tokenizer: Any, tools: Any = None) -> None:
        super().__init__(tokenizer, tools)
        self._tool_set = _tool_set(tools or ())
        self._parser = Parser(self.form, self._tool_set, check=judged_elsewhere)

    def adjust_request(self, request: Any) -> Any:
        """Constrain the answer, unless the caller has a constraint of his own."""
        if not request.tools:
            return request
        request.skip_special_tokens = False  # most markers are tokens of their own
        if request.structured_outputs is not None or request.response_format is not None:
            return request
        choice = request.tool_choice
        raw = choice if isinstance(choice, str | None) else choice.model_dump()
        tools = _tool_set(request.tools)
        built = structural_tag(
            self.form,
            tools,
            read_choice(raw, tools),
            parallel=request.parallel_tool_calls is not False,
        )
        if built.tag is not None:
            request.structured_outputs = StructuredOutputsParams(
                structural_tag=built.encoded.decode()
            )
        return request

    def extract_tool_calls(self, model_output: str, request: Any) -> Any:
        parser = Parser(self.form, self._tool_set, check=judged_elsewhere)
        message = collect([*parser.feed(model_output), *parser.finish()])
        calls = [
            ToolCall(
                id=call.id or _new_id(),
                function=FunctionCall(name=call.name, arguments=call.arguments),
            )
            for call in message.calls
        ]
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=message.content
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> Any:
        return _delta(self._parser.feed(delta_text))

    def finish_streaming(self) -> Any:
        return _delta(self._parser.finish())


def _delta(events: Iterable[Event]) -> Any:
    """One delta of chat completions; None if there is nothing to say."""
    content = ""
    calls: list[Any] = []
    for event in events:
        match event:
            case Content():
                content += event.text
            case CallBegun():
                function = DeltaFunctionCall(name=event.name, arguments="")
                head = {"id": event.id or _new_id(), "type": "function"}
                calls.append(DeltaToolCall(index=event.index, function=function, **head))
            case ArgumentsPart():
                function = DeltaFunctionCall(arguments=event.text)
                calls.append(DeltaToolCall(index=event.index, function=function))
            case _:
                pass
    return DeltaMessage(content=content or None, tool_calls=calls) if content or calls else None


def _tool_set(tools: Iterable[Any]) -> ToolSet:
    """vLLM's tools, of chat completions or Responses; other kinds are not ours to call."""
    dumped = [tool.model_dump(exclude_none=True) for tool in tools]
    functions = [tool for tool in dumped if tool.get("type") == "function"]
    return tools_from_json(msgspec.json.encode(functions))


def _new_id() -> str:
    return f"call_{uuid4().hex[:24]}"


for _form in load().values():
    globals()[class_name(_form.name)] = type(
        class_name(_form.name), (PrimeToolParser,), {"form": _form}
    )
