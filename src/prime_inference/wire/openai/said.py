"""What engines have generated of one answer so far: what another engine needs to go on with it.

Kept while the answer streams, so it holds references to what decoding has made anyway.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import NULL, Answer, Choice, Message

IdSource = Literal["token_ids", "logprobs"]
"""Where an engine writes the ids of an event's tokens: vLLM's field, llama.cpp's logprobs."""


class _TokenLogprob(Struct):
    id: int


class _Logprobs(Struct):
    content: list[_TokenLogprob] = []


_logprobs = msgspec.json.Decoder(_Logprobs)
_ids = msgspec.json.Decoder(list[int])


class Said:
    """The answer's only choice, event by event, over all engines that have written it.

    Tokens whose text has not come yet are not said: an engine that holds text back (part of
    a character, say) may name them before it.
    """

    __slots__ = ("_again", "_aligned", "_before", "_count", "_exact", "_ids", "_prompt", "_source",
                 "_texts", "_thoughts", "_withheld", "others", "rewritten")  # fmt: skip

    def __init__(self, source: IdSource | None, *, withheld: bool = False) -> None:
        self._source = source
        self._withheld = withheld  # the logprobs are ours, not the client's
        self._exact = source is not None
        self._texts: list[str] = []
        self._thoughts = 0  # events of reasoning
        self._prompt: Raw = NULL
        self._ids: list[int] = []
        self._aligned = 0  # how many of them stand for what was said
        self._before = 0  # tokens of the engines before this one
        self._count = 0  # tokens of this one, as it counted them itself
        self._again = ""  # text that was said and that the next engine was not given
        self.others = False  # it has called a tool or refused: more than text
        self.rewritten = 0  # events of this engine that were nothing but such text

    @property
    def text(self) -> str:
        """The answer's text, without reasoning."""
        return "".join(self._texts)

    @property
    def reasoned(self) -> bool:
        """Whether it has thought aloud."""
        return self._thoughts > 0

    @property
    def ids(self) -> list[int] | None:
        """The tokens of what was said; None if they are not known exactly."""
        events = len(self._texts) + self._thoughts
        counted = self._before + self._count if self._count else self._aligned
        if not self._exact or counted != self._aligned or self._aligned < events:
            return None
        return self._ids[: self._aligned]

    @property
    def tokens(self) -> int:
        """How many tokens were said: the engine's count, else named tokens, else events."""
        if self._count:
            return self._before + self._count - self.rewritten
        return max(self._aligned, self._before, len(self._texts) + self._thoughts)

    @property
    def prompt_ids(self) -> list[int] | None:
        """The prompt's tokens, if the first engine has named them. Raises UpstreamMalformed."""
        if self._prompt is NULL:
            return None
        try:
            return _ids.decode(self._prompt)
        except (ValueError, RecursionError):
            raise UpstreamMalformed("The upstream's token ids are no list of integers.") from None

    def taken_up(self, source: IdSource | None, *, withheld: bool = False, again: str = "") -> None:
        """Another engine goes on; without `source`, or by text, tokens are not known any more.

        `again` is the end of what was said, which the engine was not given: it may write it once
        more, and is not let say it twice.
        """
        self._exact = source is not None and self.ids is not None
        self._before = self.tokens
        self._ids = self._ids[: self._aligned]
        self._count = 0
        self._source = source
        self._withheld = withheld
        self._again = again
        self.rewritten = 0

    def take(self, answer: Answer, reported: Usage | None) -> None:
        """One event; `reported` is the engine's count so far.

        Hides what is not for the client: logprobs that are ours, and text that it has.
        """
        if not self._aligned and self._exact:
            self._name_prompt(answer)
        for choice in answer.choices:
            ids = choice.token_ids
            if self._source == "logprobs":
                ids = self._read_logprobs(choice)
            if ids is not None:
                self._ids += ids
            delta = choice.delta
            text = choice.text if delta is None else delta.content
            if self._again and text:
                text = self._unsaid(text, choice)
            thought = delta is not None and self._beside_text(delta)
            if text:
                self._texts.append(text)
            if text or thought:
                self._aligned = len(self._ids)
                if reported is not None:
                    self._count = reported.completion_tokens

    def _unsaid(self, text: str, choice: Choice) -> str | None:
        """What of `text` has not been said already; the choice is left with that."""
        both = zip(self._again, text, strict=False)
        same = next((at for at, (one, other) in enumerate(both) if one != other), None)
        same = min(len(self._again), len(text)) if same is None else same
        self._again = self._again[same:] if same == len(text) else ""
        self.rewritten += same == len(text)
        rest = text[same:] or None
        if choice.delta is None:
            choice.text = rest
        else:
            choice.delta.content = rest
        return rest

    def _beside_text(self, delta: Message) -> bool:
        """Note what is no text; True for reasoning."""
        if delta.tool_calls or delta.refusal:
            self.others = True
        if delta.reasoning_content or delta.reasoning:
            self._thoughts += 1
            return True
        return False

    def _name_prompt(self, answer: Answer) -> None:
        named = [answer.prompt_token_ids, *(each.prompt_token_ids for each in answer.choices)]
        for ids in named:
            if bytes(ids) != b"null":
                self._prompt = ids

    def _read_logprobs(self, choice: Choice) -> list[int] | None:
        logprobs = choice.logprobs
        if self._withheld:
            choice.logprobs = NULL
        if bytes(logprobs) == b"null":
            return None
        try:
            return [token.id for token in _logprobs.decode(logprobs).content]
        except (ValueError, RecursionError):
            return None
