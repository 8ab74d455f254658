"""An answer as it is put together from a stream. Pure: chunks in, pieces of text out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from prime_inference.cli.failures import AnswerCut, AnswerFailed
from prime_inference.cli.replies import Chunk, ChunkChoice, Usage, error_object

CUT = "The answer ended without a finish reason: part of it may be missing."


@dataclass(frozen=True, slots=True)
class Piece:
    """Text to show now: of the answer, or of the reasoning before it."""

    kind: Literal["answer", "thought"]
    text: str


class Answer:
    """What has arrived so far of one answer."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.finish_reason: str | None = None
        self.usage: Usage | None = None

    @property
    def text(self) -> str:
        """The answer without its reasoning."""
        return "".join(self._parts)

    def add(self, chunk: Chunk) -> Iterator[Piece]:
        """The pieces that a chunk brings. Raises AnswerFailed for an error in the stream."""
        if chunk.error is not None:
            raise in_band_failure(chunk.error)
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            if choice.index == 0:  # one answer was asked for
                yield from self._add_choice(choice)

    def _add_choice(self, choice: ChunkChoice) -> Iterator[Piece]:
        delta = choice.delta
        if delta is not None and delta.reasoning_content:
            yield Piece("thought", delta.reasoning_content)
        text = delta and (delta.content or delta.refusal)
        if text:
            self._parts.append(text)
            yield Piece("answer", text)
        if choice.finish_reason is not None:
            self.finish_reason = choice.finish_reason
        if choice.finish_reason == "error":
            raise in_band_failure(None)

    def end(self) -> None:
        """The stream is over. Raises AnswerCut if the answer is not."""
        if self.finish_reason is None:
            raise AnswerCut(CUT)


def in_band_failure(value: object) -> AnswerFailed:
    """The failure for an `error` field inside an answer; None if it has only a finish reason."""
    if value is None:
        return AnswerFailed("The server broke off the answer and gave no reason.")
    error = error_object(value)
    return AnswerFailed(error.message, server_code=error.code, body=error.body)
