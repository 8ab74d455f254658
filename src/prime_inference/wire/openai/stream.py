"""A streamed answer, rebuilt event by event: pure, bytes in, bytes out.

Every event is decoded, checked and written anew under our id and model name, so that an
upstream's quirks end here: a role on the first delta of each choice, sequential indices
of tool calls, one finish reason on the last chunk of a choice, usage once and last, with
`choices: []`. Source of the order: OpenAI's streaming reference.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from prime_inference.domain.errors import UpstreamCut, UpstreamFailure, UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import (
    Answer,
    Choice,
    Message,
    ToolCallDelta,
    UpstreamUsage,
    decode_answer,
    usage_object,
)
from prime_inference.wire.openai.logprobs import keep_alternatives

Shape = Literal["chat", "text"]
"""Chat completions (deltas of messages) or completions (pieces of text)."""

OBJECTS: dict[Shape, str] = {"chat": "chat.completion.chunk", "text": "text_completion"}
BROKEN_FINISHES = frozenset({"abort", "error"})  # how engines end what they could not finish
DONE_EVENT = b"data: [DONE]\n\n"

_encoder = msgspec.json.Encoder()


class ChoiceState:
    """What has been seen and sent of one choice."""

    __slots__ = ("finish", "opened", "seen_tool_calls", "tool_ids", "tool_indices")

    def __init__(self) -> None:
        self.opened = False
        self.finish: str | None = None
        self.seen_tool_calls = False
        self.tool_ids: list[str | None] = []  # by our index
        self.tool_indices: dict[int, int] = {}  # the upstream's index: ours

    def renumber(self, calls: list[ToolCallDelta]) -> None:
        """Give tool calls the indices 0, 1, ...: a new id is a new call, whatever its index."""
        self.seen_tool_calls = True
        for call in calls:
            theirs = call.index or 0
            ours = self.tool_indices.get(theirs)
            is_new = ours is None or (call.id is not None and call.id != self.tool_ids[ours])
            if is_new:
                ours = self.tool_indices[theirs] = len(self.tool_ids)
                self.tool_ids.append(call.id)
                call.type = "function"
            else:
                call.id = call.type = None
            call.index = ours


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
    ) -> None:
        self._shape: Shape = shape
        head = _encoder.encode(
            {"id": answer_id, "object": OBJECTS[shape], "created": created, "model": model}
        )
        self._head = b"data: " + head[:-1]
        self._include_usage = include_usage
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._states = [ChoiceState() for _ in range(choices)]
        self._alternatives = alternatives
        self._counted = 0
        self._reported: Usage | None = None
        self.committed = False

    @property
    def usage(self) -> Usage:
        """Tokens so far: the engine's count, else one per event that carried content."""
        if self._reported is not None:
            return self._reported
        source: Literal["counted", "none"] = "counted" if self._counted else "none"
        return Usage(completion_tokens=self._counted, source=source)

    @property
    def finished(self) -> bool:
        """Whether every choice has given its finish reason."""
        return all(state.finish is not None for state in self._states)

    def feed(self, data: bytes) -> bytes:
        """Bytes to send for one upstream event; empty if it carries nothing for the client."""
        answer = decode_answer(data)
        if answer.failed:
            raise UpstreamFailure("The model's engine reported an error in mid-answer.")
        if self._alternatives is not None:
            keep_alternatives(answer, self._alternatives)
        self._count(answer)
        pieces = [piece for choice in answer.choices if (piece := self._choice(choice))]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> bytes:
        """The last chunks: finish reasons, usage if asked for, `[DONE]`. Raises UpstreamCut."""
        if not self.finished:
            raise UpstreamCut("The model's answer ended early.")
        pieces = [self._last_chunk(index, state) for index, state in enumerate(self._states)]
        if self._include_usage and self._reported is not None:
            usage = _encoder.encode(usage_object(self._reported))
            pieces.append(b'%b,"choices":[],"usage":%b}\n\n' % (self._head, usage))
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
            state.finish = choice.finish_reason
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
            body = _encoder.encode(choice.text or "")
        else:
            assert choice.delta is not None
            body = _encoder.encode(self._delta(choice.delta, state))
        return self._write(choice.index, body, bytes(choice.logprobs), b"null")

    def _delta(self, delta: Message, state: ChoiceState) -> Message:
        delta.role = None if state.opened else "assistant"
        state.opened = True
        if delta.reasoning is not None:
            delta.reasoning_content = delta.reasoning_content or delta.reasoning
            delta.reasoning = None
        if delta.tool_calls:
            state.renumber(delta.tool_calls)
        return delta

    def _last_chunk(self, index: int, state: ChoiceState) -> bytes:
        finish = state.finish
        assert finish is not None
        if finish == "stop" and state.seen_tool_calls:
            finish = "tool_calls"
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
