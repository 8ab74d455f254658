"""Words of which prompts are made, and what a server's chat template adds to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

Message = dict[str, str]
CountTokens = Callable[[Sequence[Message]], Awaitable[int]]
"""What the server counts for a prompt; `usage.prompt_tokens` of a one-token answer."""

WORDS = 64  # six bits a word, so that eight make AgentX's marker of 48 bits
MARKER_WORDS = 8

_NOUNS = (
    "time year people way day man thing woman life child world school state family student group"
    " country problem hand part place case week company system program question work government"
    " number night point home water room mother area money story fact month lot right study book"
    " eye job word business issue side kind head house service friend father power hour game line"
    " end member law car city community name president team minute idea body information back"
    " parent face others level office door health person art war history party result change"
    " morning reason research girl guy moment air teacher force education foot boy age policy"
    " music market sense nation plan college interest death experience effect use class control"
    " field development role effort rate heart drug show leader light voice wife police mind"
    " price report decision view relationship town road arm difference value building action"
    " season society tax director position player record paper space ground form event"
)
CANDIDATES = tuple(dict.fromkeys(_NOUNS.split()))
"""Common English nouns; nearly every tokenizer has a token for each."""


class CalibrationFailed(RuntimeError):
    """The server's counts are not constants and words; the message holds what was seen."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """Words of one token each in running text, and the template's costs in tokens.

    A prompt's tokens are its words, plus `first_user` (the first user message, the answer's
    opening, and whatever the template says by itself), plus `system` if there is a system
    message, plus `exchange` for every pair of an assistant's and a user's message.
    """

    words: tuple[str, ...]
    first_user: int
    system: int
    exchange: int

    @property
    def assistant(self) -> int:
        """The part of `exchange` that is put down to the assistant's message."""
        return self.exchange // 2

    @property
    def user(self) -> int:
        """The part of `exchange` that is put down to the user's message."""
        return self.exchange - self.assistant


async def calibrate(count: CountTokens) -> Vocabulary:
    """Find words and costs by asking the server. Raises CalibrationFailed and what `count` does."""
    words = await _single_tokens(count, CANDIDATES)
    if len(words) < WORDS:
        raise CalibrationFailed(
            f"only {len(words)} of {len(CANDIDATES)} words are one token each; {WORDS} are needed"
        )
    vocabulary = await _costs(count, tuple(words[:WORDS]))
    await _verify(count, vocabulary)
    return vocabulary


async def _single_tokens(count: CountTokens, words: Sequence[str]) -> list[str]:
    """Those of `words` that are one token each; groups that cost more are halved."""
    once = await count([_message("user", words)])
    twice = await count([_message("user", [*words, *words])])
    if twice - once == len(words):
        return list(words)
    if len(words) == 1:
        return []
    half = len(words) // 2
    left = await _single_tokens(count, words[:half])
    if len(left) >= WORDS:
        return left
    return left + await _single_tokens(count, words[half:])


async def _costs(count: CountTokens, words: tuple[str, ...]) -> Vocabulary:
    user = await count([_message("user", words[:1])]) - 1
    with_system = await count([_message("system", words[:1]), _message("user", words[:1])]) - 2
    exchange = await count(_conversation(words, [1, 1, 1])) - 3 - user
    return Vocabulary(words=words, first_user=user, system=with_system - user, exchange=exchange)


async def _verify(count: CountTokens, vocabulary: Vocabulary) -> None:
    """A conversation of another shape must cost what the constants say."""
    lengths = [5, 40, 7, 30, 9]
    system = _message("system", vocabulary.words[1:12])
    seen = await count([system, *_conversation(vocabulary.words, lengths)])
    expected = (
        vocabulary.first_user + vocabulary.system + 2 * vocabulary.exchange + sum(lengths) + 11
    )
    if seen != expected:
        raise CalibrationFailed(
            f"a conversation of {sum(lengths) + 11} words should cost {expected} tokens by"
            f" {vocabulary.first_user} for the first message, {vocabulary.system} for the"
            f" system's and {vocabulary.exchange} an exchange; the server counts {seen}"
        )


def _conversation(words: Sequence[str], lengths: Sequence[int]) -> list[Message]:
    roles = ("user", "assistant")
    return [_message(roles[n % 2], words[n : n + length]) for n, length in enumerate(lengths)]


def _message(role: str, words: Sequence[str]) -> Message:
    return {"role": role, "content": " ".join(words)}
