"""A streamed answer put together as the whole one that the client asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed
from prime_inference.wire.openai.answers import (
    NULL,
    Answer,
    Choice,
    FunctionDelta,
    Message,
    ToolCallDelta,
)
from prime_inference.wire.openai.calls import ANY_CALLS, CallRules
from prime_inference.wire.openai.stream import AnswerStream, ChoiceState, Shape


class _LogprobContent(Struct):
    """The part of a chat completion's logprobs that grows with each event."""

    content: list[Raw] | None = None


_logprobs = msgspec.json.Decoder(_LogprobContent)


def _logprob_content(logprobs: Raw) -> list[Raw]:
    try:
        return _logprobs.decode(logprobs).content or []
    except (ValueError, RecursionError):
        raise UpstreamMalformed("The upstream's logprobs are not what its API promises.") from None


@dataclass(slots=True)
class _Collected:
    """The pieces of one choice."""

    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    calls: list[ToolCallDelta] = field(default_factory=list)
    arguments: list[list[str]] = field(default_factory=list)  # of each call
    logprobs: list[Raw] = field(default_factory=list)

    def add(self, delta: Message) -> None:
        self.content.append(delta.content or "")
        self.reasoning.append(delta.reasoning_content or "")
        self.refusal.append(delta.refusal or "")
        for call in delta.tool_calls or ():
            self._add_call(call)

    def _add_call(self, call: ToolCallDelta) -> None:
        index = call.index or 0
        function = call.function or FunctionDelta()
        if index == len(self.calls):
            self.calls.append(ToolCallDelta(id=call.id, type="function", function=function))
            self.arguments.append([])
        self.arguments[index].append(function.arguments or "")

    def add_logprobs(self, logprobs: Raw) -> None:
        if bytes(logprobs) != b"null":
            self.logprobs += _logprob_content(logprobs)

    def message(self) -> Message:
        for call, pieces in zip(self.calls, self.arguments, strict=True):
            assert call.function is not None
            call.function = FunctionDelta(call.function.name, "".join(pieces))
        return Message(
            role="assistant",
            content="".join(self.content) or (None if self.calls else ""),
            reasoning_content="".join(self.reasoning) or None,
            refusal="".join(self.refusal) or None,
            tool_calls=self.calls or None,
        )


class AnswerCollector(AnswerStream):
    """Takes the events of an upstream's stream like `AnswerStream`; `answer` is their sum."""

    def __init__(
        self, shape: Shape, choices: int, *, answer_id: str = "", rules: CallRules = ANY_CALLS
    ) -> None:
        super().__init__(
            shape, answer_id=answer_id, created=0, model="", choices=choices, rules=rules
        )
        self._collected = [_Collected() for _ in range(choices)]

    def take_whole(self, answer: Answer) -> None:
        """Take an answer that came whole. Raises UpstreamFailure."""
        if answer.failed:
            raise UpstreamFailure("The model's engine reported an error.")
        for choice in answer.choices:
            if choice.message is None:
                raise UpstreamMalformed("The upstream gave a choice without a message.")
            choice.delta = choice.message
            for index, call in enumerate(choice.delta.tool_calls or ()):
                call.index = index  # each stands for itself here, whatever index it has
            self._choice(choice)

    def answer(self) -> Answer:
        """Raises UpstreamCut if a choice has no finish reason."""
        self.finish()
        choices = [self._collected_choice(index, state) for index, state in enumerate(self._states)]
        return Answer(choices=choices)

    def _send_text(self, choice: Choice) -> bytes:
        collected = self._collected[choice.index]
        collected.content.append(choice.text or "")
        collected.add_logprobs(choice.logprobs)
        return b""

    def _send(self, index: int, delta: Message, logprobs: Raw, state: ChoiceState) -> bytes:
        collected = self._collected[index]
        collected.add(delta)
        collected.add_logprobs(logprobs)
        return b""

    def _collected_choice(self, index: int, state: ChoiceState) -> Choice:
        collected = self._collected[index]
        logprobs = NULL
        if collected.logprobs:
            logprobs = Raw(msgspec.json.encode({"content": collected.logprobs}))
        choice = Choice(index=index, logprobs=logprobs, finish_reason=self._finish_reason(state))
        if self._shape == "text":
            choice.text = "".join(collected.content)
        else:
            choice.message = collected.message()
        return choice
