"""The stream of an answer that another engine goes on with: the client sees one stream."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import Choice, Message
from prime_inference.wire.openai.said import Said
from prime_inference.wire.openai.stop_seam import StopSeam
from prime_inference.wire.openai.stream import AnswerStream


class ContinuedStream(AnswerStream):
    """Rebuilds the next engine's events as more of the answer that `before` has begun.

    The next engine may answer in the shape of completions, whatever the client asked for.
    Takes over what `before` knows: the answer's id, its choice, what was said of it.
    """

    def __init__(self, before: AnswerStream, said: Said, stops: Sequence[str]) -> None:
        vars(self).update(vars(before))
        self._earlier = _kept(before.usage, said.tokens)
        self._again = said
        self._counted = 0
        self._reported = None
        self._states[0].finish = None
        self._seam: StopSeam | None = vars(before).get("_seam")
        if self._seam is not None:
            self._seam.again()
        elif stops:
            self._seam = StopSeam(stops, said.text)

    @property
    def usage(self) -> Usage:
        """One generation: the prompt as the first engine counted it, every token said once.

        Reported only if every engine has reported; else what can be known is `counted`.
        """
        before, now = self._earlier, super().usage
        both = before.source == now.source == "upstream"
        prompt = before.prompt_tokens
        if before.source != "upstream":  # its engine's prompt is ours and what was said
            prompt = max(0, now.prompt_tokens - before.completion_tokens)
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=before.completion_tokens + self._new_tokens(now),
            cached_tokens=before.cached_tokens,
            reasoning_tokens=before.reasoning_tokens + now.reasoning_tokens,
            source="upstream" if both or self._nothing_followed else "counted",
        )

    def _new_tokens(self, now: Usage) -> int:
        """The next engine's, without those of text that was said before."""
        rewritten = self._again.rewritten if now.source == "upstream" else 0
        return max(0, now.completion_tokens - rewritten)

    @property
    def _nothing_followed(self) -> bool:
        return self._earlier.source == "upstream" and not self._counted and not self._reported

    def finish(self, reason: str | None = None) -> bytes:
        """As ever, after the text that was held back and is no stop string."""
        held = ""
        if self._seam is not None and not self.ended:
            held, self._seam = self._seam.rest(), None
        last = super()._choice(self._piece(held)) if held else b""
        return last + super().finish(reason)

    def _piece(self, text: str) -> Choice:
        return Choice(delta=Message(content=text)) if self._shape == "chat" else Choice(text=text)

    def _choice(self, choice: Choice) -> bytes:
        if self.ended:
            return b""
        if self._shape == "chat" and choice.delta is None:
            choice.delta = Message(content=choice.text or None)
        if self._seam is not None:
            self._watch(self._seam, choice)
        return super()._choice(choice)

    def _watch(self, seam: StopSeam, choice: Choice) -> None:
        """Replace the choice's text by what may be sent of it."""
        delta = choice.delta if self._shape == "chat" else None
        text = (choice.text if delta is None else delta.content) or ""
        text = seam.feed(text)
        if seam.stopped:
            choice.finish_reason = "stop"
            self.ended = True
        elif choice.finish_reason or not seam.watching:
            text += seam.rest()
            self._seam = None
        if delta is None:
            choice.text = text
        else:
            delta.content = text or None


def _kept(usage: Usage, tokens: int) -> Usage:
    """Tokens that an engine has generated but whose text it never sent are nobody's."""
    return Usage(
        usage.prompt_tokens, tokens, usage.cached_tokens, usage.reasoning_tokens, usage.source
    )
