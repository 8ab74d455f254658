"""Asking a model and showing its answer, whole or as it comes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from prime_inference.cli.answer import CUT, Answer, in_band_failure
from prime_inference.cli.client import InferenceClient
from prime_inference.cli.conversation import Conversation
from prime_inference.cli.failures import AnswerCut
from prime_inference.cli.statistics import Statistics, Stopwatch, streamed, whole
from prime_inference.cli.terminal import Terminal


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to answer: the fields that a request carries besides model and messages."""

    temperature: float | None = None
    max_tokens: int | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None

    def payload(self, model: str, conversation: Conversation) -> dict[str, Any]:
        """The body of a chat request; what is not set is not sent."""
        fields = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "reasoning_effort": self.reasoning_effort,
            "service_tier": self.service_tier,
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return {"model": model, "messages": conversation.messages(), **given}


@dataclass(frozen=True, slots=True)
class Talk:
    """A model to ask, how, and where its answers go."""

    client: InferenceClient
    terminal: Terminal
    model: str
    sampling: Sampling
    stats: bool = False
    as_json: bool = False

    def answer_whole(self, conversation: Conversation) -> None:
        """Print an answer once it is complete. Raises CommandFailed."""
        payload = self.sampling.payload(self.model, conversation)
        watch = Stopwatch(time.perf_counter)
        with self._waiting():
            completion, body = self.client.chat(payload)
        choice = completion.choices[0]
        statistics = whole(watch, completion.usage, choice.finish_reason)
        if self.as_json:
            self.terminal.json(body)
        else:
            self.terminal.answer(choice.message.content or choice.message.refusal or "")
            self.terminal.end_answer()
        if choice.finish_reason is None:
            raise AnswerCut(CUT)
        if choice.finish_reason == "error":
            raise in_band_failure(None)
        self._print(statistics)

    def answer_streamed(self, conversation: Conversation, answer: Answer) -> None:
        """Print an answer as it comes; `answer` holds what came, whatever is raised."""
        payload = self.sampling.payload(self.model, conversation)
        if self.stats:
            payload["stream_options"] = {"include_usage": True}
        watch = Stopwatch(time.perf_counter)
        with (
            _printing(self.terminal) as printer,
            closing(self.client.chat_stream(payload)) as chunks,
        ):
            for chunk in chunks:
                for piece in answer.add(chunk):
                    watch.piece()
                    printer.show(piece.kind, piece.text)
            answer.end()
        self._print(streamed(watch, answer.usage, answer.finish_reason))

    def _waiting(self) -> AbstractContextManager[None]:
        if self.as_json:
            return nullcontext()
        return self.terminal.waiting(f"Waiting for {self.model} ...")

    def _print(self, statistics: Statistics) -> None:
        if not self.stats:
            return
        if self.as_json:
            self.terminal.json_note(statistics.as_json())
        else:
            self.terminal.note(statistics.as_text())


class _Printer:
    """Answers to stdout; reasoning to stderr, between marks."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._thinking = False

    def show(self, kind: str, text: str) -> None:
        if kind == "thought":
            self._terminal.thought(text if self._thinking else f"<think>\n{text}")
            self._thinking = True
        else:
            self.end_thought()
            self._terminal.answer(text)

    def end_thought(self) -> None:
        if self._thinking:
            self._terminal.thought("\n</think>\n\n")
            self._thinking = False


@contextmanager
def _printing(terminal: Terminal) -> Iterator[_Printer]:
    """A printer that leaves whole lines behind, also when the answer breaks off."""
    printer = _Printer(terminal)
    try:
        yield printer
    finally:
        printer.end_thought()
        terminal.end_answer()
