"""A streamed answer, rebuilt event by event: pure, bytes in, bytes out.

Every event is decoded, checked and written anew under our id and model name, so that an
upstream's quirks end here: a role on the first delta of each choice, tool calls in order
(`calls`), one finish reason on the last chunk of a choice, usage once and last, with
`choices: []`. Source of the order: OpenAI's streaming reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

import msgspec
from msgspec import UNSET, Raw

from prime_inference.domain.errors import UpstreamCut, UpstreamFailure, UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import (
    NULL,
    Answer,
    Choice,
    Message,
    UpstreamUsage,
    decode_answer,
    usage_object,
)
from prime_inference.wire.openai.calls import (
    ANY_CALLS,
    CALL_REASONS,
    CallRepair,
    CallRules,
    ChoiceCalls,
    TextReader,
    require_objects,
)
from prime_inference.wire.openai.logprobs import keep_alternatives
from prime_inference.wire.openai.said import Said

Charge = Callable[[Usage], float | None]
"""Takes the usage of a whole answer before its end is sent; dollars, None without a price."""

Shape = Literal["chat", "text"]
"""Chat completions (deltas of messages) or completions (pieces of text)."""

OBJECTS: dict[Shape, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}
BROKEN_FINISHES = frozenset({"abort", "error"})  # how engines end what they could not finish
DONE_EVENT = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class ChoiceState:
    """What has been seen and sent of one choice."""

    __slots__ = ("calls", "finish", "opened", "reader", "stop_reason")

    def __init__(self, reader: TextReader | None) -> None:
        self.opened = False
        self.finish: str | None = None
        self.calls: CallRepair | None = None  # from the first one on
        self.reader = reader
        self.stop_reason: object = UNSET

    @property
    def met_stop(self) -> bool | None:
        """Whether a stop string ended it; None: the engine does not tell."""
        if self.stop_reason is UNSET:
            return None
        return isinstance(self.stop_reason, str)


class AnswerStream:
    """Rebuilds the events of one upstream stream for one client.

    `feed` each event's data, then `finish`. Both raise UpstreamFailure; what `feed` has
    returned before stays valid. `committed` tells whether content has been returned.
    """

    def __init__(
        self,
        shape: Shape,
        *,
        answer_id: str,
        created: int,
        model: str,
        include_usage: bool = False,
        choices: int = 1,
        alternatives: int | None = None,  # of each token's logprobs; None: they stay as they come
        rules: CallRules = ANY_CALLS,
        service_tier: str = "",  # as the client is told; empty: not a word
        charge: Charge | None = None,
    ) -> None:
        self._charge = charge
        self._shape: Shape = shape
        head = {"id": answer_id, "object": OBJECTS[shape], "created": created, "model": model}
        if service_tier:
            head["service_tier"] = service_tier
        self._head = b"data: " + _encoder.encode(head)[:-1]
        self._include_usage = include_usage
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._alternatives = alternatives
        self._answer_id = answer_id
        self._rules = rules
        new_reader = rules.new_reader
        self._states = [
            ChoiceState(None if new_reader is None else new_reader()) for _ in range(choices)
        ]
        self._counted = 0
        self._reported: Usage | None = None
        self.committed = False
        self.said: Said | None = None  # kept if another engine may have to go on
        self.ended = False  # finished before the upstream has: read no further

    @property
    def usage(self) -> Usage:
        """Tokens so far: the engine's count, else one per event that carried content.

        A report of no completion beside content is none.
        """
        reported = self._reported
        if reported is not None and (reported.completion_tokens or not self._counted):
            return reported
        prompt = 0 if reported is None else reported.prompt_tokens
        source: Literal["counted", "none"] = "counted" if self._counted else "none"
        return Usage(prompt, self._counted, source=source)

    @property
    def content_events(self) -> int:
        """How many events have brought content, whether or not it could be sent already."""
        return self._counted

    @property
    def finished(self) -> bool:
        """Whether every choice has given its finish reason."""
        return all(state.finish is not None for state in self._states)

    @property
    def calls(self) -> list[ChoiceCalls]:
        """What became of the calls of each choice, once the answer has finished."""
        return [
            ChoiceCalls(
                self._finish_reason(state),
                state.calls.calls if state.calls is not None else (),
                self._may_have_stopped(state),
                state.calls is not None and state.calls.unwanted,
            )
            for state in self._states
        ]

    def feed(self, data: bytes) -> bytes:
        """Bytes to send for one upstream event; empty if it carries nothing for the client."""
        answer = decode_answer(data)
        if answer.failed:
            raise UpstreamFailure("The model's engine reported an error in mid-answer.")
        self._count(answer)
        if self.said is not None:
            self.said.take(answer, self._reported)
        if self._alternatives is not None:
            keep_alternatives(answer, self._alternatives)
        pieces = [piece for choice in answer.choices if (piece := self._choice(choice))]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self, reason: str | None = None) -> bytes:
        """The last chunks: finish reasons, usage if asked for, `[DONE]`. Raises UpstreamCut.

        `reason` is the finish reason of choices whose engine gave none.
        """
        for state in self._states:
            state.finish = state.finish or reason
        if not self.finished:
            raise UpstreamCut("The model's answer ended early.")
        pieces: list[bytes] = []
        for index, state in enumerate(self._states):
            pieces += (self._rest(index, state), self._last_chunk(index, state))
        if self._rules.objects:
            require_objects(call for choice in self.calls for call in choice.calls)
        cost = None if self._charge is None else self._charge(self.usage)
        if self._include_usage and (usage := self.usage).source == "upstream":
            counts = _encoder.encode(usage_object(usage, cost))
            pieces.append(b'%b,"choices":[],"usage":%b}\n\n' % (self._head, counts))
        pieces.append(DONE_EVENT)
        return b"".join(pieces)

    def error_event(self, error: dict[str, object]) -> bytes:
        """An in-band error as the stream's last event; no `[DONE]` may follow it."""
        choices = [
            {"index": index, self._field: self._empty, "finish_reason": "error"}
            for index in range(len(self._states))
        ]
        rest = _encoder.encode({"choices": choices, "error": error})
        return b"%b,%b\n\n" % (self._head, rest[1:])

    # -- one event

    def _count(self, answer: Answer) -> None:
        if answer.usage is not None:
            self._reported = answer.usage.to_usage()
        elif answer.timings is not None:
            timings = answer.timings
            self._reported = UpstreamUsage(
                prompt_tokens=timings.prompt_n + timings.cache_n,
                completion_tokens=timings.predicted_n,
            ).to_usage()

    def _choice(self, choice: Choice) -> bytes:
        if choice.index >= len(self._states):
            raise UpstreamMalformed("The upstream sent a choice that was not asked for.")
        state = self._states[choice.index]
        piece = b""
        if self._has_content(choice):
            state.finish = None  # a finish reason before the last content was not the last
            self._counted += 1
            self.committed = True
            piece = self._chunk(choice, state)
        if choice.finish_reason:
            if choice.finish_reason in BROKEN_FINISHES:
                raise UpstreamCut("The model's engine gave the answer up.")
            state.finish, state.stop_reason = choice.finish_reason, choice.stop_reason
        return piece

    def _has_content(self, choice: Choice) -> bool:
        """Whether it is a token's; one that is part of a character has logprobs and no text."""
        if self._shape == "text":
            return bool(choice.text) or bytes(choice.logprobs) != b"null"
        if choice.delta is None:
            return False
        return choice.delta.has_content or bytes(choice.logprobs) != b"null"

    def _chunk(self, choice: Choice, state: ChoiceState) -> bytes:
        if self._shape == "text":
            return self._send_text(choice)
        assert choice.delta is not None
        delta = self._delta(choice.index, choice.delta, state)
        if delta is None:
            if bytes(choice.logprobs) == b"null":
                return b""
            delta = Message(content="")  # the logprobs of text that is held back
        return self._send(choice.index, delta, choice.logprobs, state)

    def _send_text(self, choice: Choice) -> bytes:
        body = _encoder.encode(choice.text or "")
        return self._write(choice.index, body, bytes(choice.logprobs), b"null")

    def _send(self, index: int, delta: Message, logprobs: Raw, state: ChoiceState) -> bytes:
        delta.role = None if state.opened else "assistant"
        state.opened = True
        return self._write(index, _encoder.encode(delta), bytes(logprobs), b"null")

    def _delta(self, index: int, delta: Message, state: ChoiceState) -> Message | None:
        """The delta to send instead; None while there is nothing to send."""
        if delta.reasoning is not None:
            delta.reasoning_content = delta.reasoning_content or delta.reasoning
            delta.reasoning = None
        if state.reader is not None and delta.content:
            thought = delta.reasoning_content
            delta = state.reader.feed(delta.content)
            if thought:  # found by the upstream itself
                delta.reasoning_content = thought + (delta.reasoning_content or "")
        elif not delta.tool_calls:
            return delta
        if delta.tool_calls:
            delta.tool_calls = self._calls(index, state).repair(delta.tool_calls) or None
        return delta if delta.has_content else None

    def _calls(self, index: int, state: ChoiceState) -> CallRepair:
        if state.calls is None:
            prefix = self._answer_id.rpartition("-")[2]
            state.calls = CallRepair(f"{prefix}_{index}" if index else prefix, self._rules)
        return state.calls

    def _rest(self, index: int, state: ChoiceState) -> bytes:
        """What only the end of the answer makes certain."""
        delta = Message()
        by_length = state.finish == "length"
        may_have_stopped = self._may_have_stopped(state)
        cut, amid_last = by_length or may_have_stopped, by_length or state.met_stop is True
        broken: Collection[int] = ()
        if state.reader is not None:
            # where the engine does not tell, text that is surely no call is the model's own end
            delta = state.reader.finish(cut=amid_last or (cut and state.reader.amid_markup))
            amid_last, broken = state.reader.amid_call, state.reader.broken
            state.reader = None
            if delta.tool_calls:
                delta.tool_calls = self._calls(index, state).repair(delta.tool_calls) or None
        if state.calls is not None:
            rest = state.calls.finish(cut=cut, amid_last=amid_last, broken=broken)
            delta.tool_calls = [*(delta.tool_calls or ()), *rest] or None
        return self._send(index, delta, NULL, state) if delta.has_content else b""

    def _may_have_stopped(self, state: ChoiceState) -> bool:
        """Whether a stop string of the caller's ended it, as far as the engine tells."""
        stops = self._rules.stops and state.finish in CALL_REASONS
        return stops and state.met_stop is not False

    @staticmethod
    def _finish_reason(state: ChoiceState) -> str:
        assert state.finish is not None, "called once the answer has finished"
        if state.calls is not None:
            return state.calls.finish_reason(state.finish)
        return "stop" if state.finish == "tool_calls" else state.finish

    def _last_chunk(self, index: int, state: ChoiceState) -> bytes:
        finish = self._finish_reason(state)
        body = b'""' if self._shape == "text" else b"{}"
        if self._shape == "chat" and not state.opened:
            body = b'{"role":"assistant","content":""}'
        return self._write(index, body, b"null", _encoder.encode(finish))

    def _write(self, index: int, body: bytes, logprobs: bytes, finish: bytes) -> bytes:
        return b'%b,"choices":[{"index":%d,"%b":%b,"logprobs":%b,"finish_reason":%b}]%b' % (
            self._head, index, self._field.encode(), body, logprobs, finish, self._tail,
        )  # fmt: skip

    @property
    def _field(self) -> str:
        return "text" if self._shape == "text" else "delta"

    @property
    def _empty(self) -> object:
        return "" if self._shape == "text" else {}
