"""The mock engine's language: what it reads as tokens and what it answers.

A token is one word with the white space before it. The k-th token of an answer depends on
the prompt and on k only, so a test can know the whole text of an answer beforehand, and an
answer that was cut can be continued by another engine without a seam.

A prompt is rendered the way chat templates do it: a mark for each role, the words of the
message, and at the end the assistant's mark, after which the answer begins. Everything
after the *last* assistant mark counts as an answer begun.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import msgspec

ANSWER_TOKENS = 64  # length of an answer that nothing cuts short: the benchmark's 64 deltas

ROLE_MARKS = {"system": 1, "user": 2, "assistant": 3, "tool": 4, "developer": 5, "function": 6}
OTHER_MARK = 7
ANSWER_MARK = ROLE_MARKS["assistant"]

SYLLABLES = tuple(c + v for c, v in product("bdfghklmnprstvwz", "aeiouéø"))
"""Two of these make a word; é and ø take two bytes, so that UTF-8 gets split in tests."""
WORDS = len(SYLLABLES) ** 2
FIRST_WORD_ID = 16  # ids below are marks
FIRST_OTHER_ID = FIRST_WORD_ID + WORDS  # words that are not of the vocabulary are hashed up here
VOCABULARY_SIZE = 131_072  # ids are below this

TOKEN = re.compile(r"\s*\S+")


@dataclass(frozen=True, slots=True)
class Prompt:
    """What an answer depends on.

    `ids` are the prompt's tokens, up to and including the answer mark; `begun` is the text
    of an answer begun already, as words, and `begun_tokens` its length.
    """

    ids: tuple[int, ...]
    begun: str = ""
    begun_tokens: int = 0

    @property
    def seed(self) -> int:
        return zlib.crc32(array("I", self.ids).tobytes())

    @property
    def tokens(self) -> int:
        """What `usage.prompt_tokens` counts."""
        return len(self.ids) + self.begun_tokens


def word(seed: int, k: int) -> str:
    """The k-th word of the answer that belongs to `seed`."""
    return _word_text(zlib.crc32(k.to_bytes(4, "little"), seed) % WORDS)


def _word_text(number: int) -> str:
    first, second = divmod(number, len(SYLLABLES))
    return SYLLABLES[first] + SYLLABLES[second]


def token_text(seed: int, k: int) -> str:
    """The k-th token of an answer: its word, with a space before all but the first."""
    return " " + word(seed, k) if k else word(seed, k)


def word_id(text: str) -> int:
    """The token id of a word."""
    if len(text) == 4 and text[:2] in SYLLABLES and text[2:] in SYLLABLES:
        number = SYLLABLES.index(text[:2]) * len(SYLLABLES) + SYLLABLES.index(text[2:])
        return FIRST_WORD_ID + number
    span = VOCABULARY_SIZE - FIRST_OTHER_ID
    return FIRST_OTHER_ID + zlib.crc32(text.encode()) % span


def text_ids(text: str) -> list[int]:
    """The token ids of a text."""
    return [word_id(token.strip()) for token in TOKEN.findall(text)]


def ids_text(ids: Iterable[int]) -> str:
    """The words that token ids of the vocabulary stand for; `<id>` for any other."""
    words = range(FIRST_WORD_ID, FIRST_OTHER_ID)
    return " ".join(_word_text(i - FIRST_WORD_ID) if i in words else f"<{i}>" for i in ids)


def chat_prompt(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    """Render a conversation; a last message of the assistant's is an answer begun."""
    ids: list[int] = []
    begun = ""
    if messages and messages[-1].get("role") == "assistant":
        begun = message_text(messages[-1])
        messages = messages[:-1]
    for message in messages:
        ids.append(ROLE_MARKS.get(str(message.get("role")), OTHER_MARK))
        ids.extend(text_ids(message_text(message)))
    ids.append(ANSWER_MARK)
    return Prompt(tuple(ids), begun, len(text_ids(begun)))


def message_text(message: Mapping[str, Any]) -> str:
    """The words of one message: its text, then names and arguments of its tool calls."""
    content = message.get("content")
    parts = [content] if isinstance(content, str) else [_part_text(p) for p in content or ()]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [str(function.get("name")), str(function.get("arguments"))]
    return " ".join(parts)


def _part_text(part: Mapping[str, Any]) -> str:
    if isinstance(part.get("text"), str):
        return str(part["text"])
    return f"<{zlib.crc32(msgspec.json.encode(part)):x}>"  # an image, say: one token


def text_prompt(text: str) -> Prompt:
    """A bare prompt, as `/v1/completions` takes it."""
    return Prompt((*text_ids(text), ANSWER_MARK))


def ids_prompt(ids: Sequence[int]) -> Prompt:
    """A prompt that comes as token ids, with an answer begun after the last answer mark."""
    if ANSWER_MARK not in ids:
        return Prompt((*ids, ANSWER_MARK))
    start = len(ids) - ids[::-1].index(ANSWER_MARK)
    begun = ids[start:]
    return Prompt(tuple(ids[:start]), ids_text(begun), len(begun))


def answer_tokens(prompt: Prompt, length: int, *, choice: int = 0) -> list[str]:
    """The tokens that are left of an answer of `length` tokens, after those begun.

    Text begun that stops inside a word is taken up inside that word; text that is none of
    this language's is counted in words.
    """
    seed = choice_seed(prompt, choice)
    if not prompt.begun:
        return [token_text(seed, k) for k in range(length)]
    return tokens_after(prompt.begun, [token_text(seed, k) for k in range(length)])


def tokens_after(begun: str, tokens: Sequence[str]) -> list[str]:
    """What is left of `tokens` when the text `begun` has been said already."""
    if not "".join(tokens).startswith(begun):
        return list(tokens[len(text_ids(begun)) :])
    said = len(begun)
    for k, token in enumerate(tokens):
        if said < len(token):
            return [token[said:], *tokens[k + 1 :]]
        said -= len(token)
    return []


def choice_seed(prompt: Prompt, choice: int) -> int:
    """The seed of the n-th choice; the first one's is the prompt's own."""
    return zlib.crc32(choice.to_bytes(4, "little"), prompt.seed) if choice else prompt.seed


def expected_text(
    messages: Sequence[Mapping[str, Any]] | str | Sequence[int],
    max_tokens: int | None = None,
    *,
    choice: int = 0,
    length: int = ANSWER_TOKENS,
) -> str:
    """The text that the mock engine answers: to a conversation, a bare text, or token ids.

    `max_tokens` is the request's, `length` the engine's `answer_tokens` (or the behaviour
    `answer-N`). An answer begun in the prompt is not repeated.
    """
    prompt = as_prompt(messages)
    return "".join(answer_tokens(prompt, length, choice=choice)[:max_tokens])


def expected_usage(
    messages: Sequence[Mapping[str, Any]] | str | Sequence[int],
    max_tokens: int | None = None,
    *,
    length: int = ANSWER_TOKENS,
) -> tuple[int, int]:
    """Prompt tokens and completion tokens of the answer that `expected_text` gives."""
    prompt = as_prompt(messages)
    return prompt.tokens, len(answer_tokens(prompt, length)[:max_tokens])


def as_prompt(prompt: Sequence[Mapping[str, Any]] | str | Sequence[int]) -> Prompt:
    """Render whichever form a prompt comes in."""
    if isinstance(prompt, str):
        return text_prompt(prompt)
    if prompt and isinstance(prompt[0], int):
        return ids_prompt(prompt)  # type: ignore[arg-type]  # the first element tells the kind
    return chat_prompt(prompt)  # type: ignore[arg-type]
