"""What engines have generated of one answer so far: what another engine needs to go on with it.

Kept while the answer streams, so it holds references to what decoding has made anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from prime_inference.domain.errors import UpstreamMalformed
from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import NULL, Answer, Choice

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

    `ids` are the tokens of what was said, None once they are not known exactly: an engine
    that holds text back (part of a character, say) names its tokens before their text, or
    not at all. Tokens whose text has not come yet are not in `ids` and not counted.
    """

    __slots__ = ("_before", "_fresh", "_prompt", "_source", "_texts", "_withheld", "ids", "others",
                 "reasoned", "tokens")  # fmt: skip

    def __init__(self, source: IdSource | None, *, withheld: bool = False) -> None:
        self._source = source
        self._withheld = withheld  # the logprobs are ours, not the client's
        self._texts: list[str] = []
        self._prompt: Raw = NULL
        self._fresh: list[int] = []  # tokens whose text has not come yet
        self._before = 0  # tokens of the engines before this one
        self.ids: list[int] | None = None if source is None else []
        self.tokens = 0
        self.reasoned = False  # it has thought aloud
        self.others = False  # it has called a tool or refused: more than text

    @property
    def text(self) -> str:
        """The answer's text, without reasoning."""
        if len(self._texts) > 1:
            self._texts = ["".join(self._texts)]
        return self._texts[0] if self._texts else ""

    @property
    def prompt_ids(self) -> list[int] | None:
        """The prompt's tokens, if the first engine has named them. Raises UpstreamMalformed."""
        if self._prompt is NULL:
            return None
        try:
            return _ids.decode(self._prompt)
        except (ValueError, RecursionError):
            raise UpstreamMalformed("The upstream's token ids are no list of integers.") from None

    def taken_up(self, source: IdSource | None, *, withheld: bool = False) -> None:
        """Another engine goes on; without `source`, or by text, tokens are not known any more."""
        self._source = source
        self._withheld = withheld
        self._fresh = []
        self._before = self.tokens
        if source is None:
            self.ids = None

    def take(self, answer: Answer, reported: Usage | None) -> None:
        """One event; `reported` is the engine's count so far. Hides logprobs that are ours."""
        if self.ids == [] and not self._before:
            self._name_prompt(answer)
        for choice in answer.choices:
            self._take(choice, reported)

    def _name_prompt(self, answer: Answer) -> None:
        named = [answer.prompt_token_ids, *(each.prompt_token_ids for each in answer.choices)]
        for ids in named:
            if bytes(ids) != b"null":
                self._prompt = ids

    def _take(self, choice: Choice, reported: Usage | None) -> None:
        if self.ids is not None:
            self._fresh += self._ids_of(choice)
        if self._withheld:
            choice.logprobs = NULL
        delta, text = choice.delta, choice.text
        thought: str | None = None
        if delta is not None:
            text = delta.content
            thought = delta.reasoning_content or delta.reasoning
            self.reasoned = self.reasoned or bool(thought)
            self.others = self.others or bool(delta.tool_calls or delta.refusal)
        if text:
            self._texts.append(text)
        elif not thought:
            return
        self.tokens = self.tokens + 1
        if reported is not None:
            self.tokens = self._before + reported.completion_tokens
        if self.ids is not None:
            self._match_ids(reported)

    def _match_ids(self, reported: Usage | None) -> None:
        assert self.ids is not None
        if not self._fresh:
            self.ids = None
            return
        self.ids += self._fresh
        self._fresh = []
        if reported is None:
            self.tokens = len(self.ids)
        elif self.tokens != len(self.ids):
            self.ids = None

    def _ids_of(self, choice: Choice) -> Sequence[int]:
        if self._source == "token_ids":
            return choice.token_ids or ()
        if choice.logprobs is NULL or bytes(choice.logprobs) == b"null":
            return ()
        try:
            return [token.id for token in _logprobs.decode(choice.logprobs).content]
        except (ValueError, RecursionError):
            return ()
