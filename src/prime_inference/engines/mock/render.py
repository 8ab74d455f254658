"""The mock engine's answers as JSON: bodies of whole answers, events of streamed ones.

The shapes are those of vLLM's OpenAI server, which differ from OpenAI's in that `usage` is
absent rather than null where there is none. `choices` and what follows them do not change
between two answers to the same request, so they are made once; `open_object` makes what
does change, and the two are put together as `{` + opening + rest.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec

from prime_inference.engines.mock.answer import Answer, CallPiece, Choice, Unit, unit_ids
from prime_inference.engines.mock.behaviour import PLAIN, Behaviour
from prime_inference.engines.mock.calls import with_faults
from prime_inference.engines.mock.request import ChatRequest, CompletionRequest

Request = ChatRequest | CompletionRequest


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer in the parts that a script puts together; all bytes but for the opening.

    `frames[k]` are the events that token k brings (one for each choice that is still going);
    `lead` come before the first, `finish` after the last.
    """

    body: bytes
    lead: Sequence[bytes]
    frames: Sequence[Sequence[bytes]]
    finish: Sequence[bytes]
    usage: bytes | None
    tokens: int


def open_object(chat: bool, streamed: bool, identity: str, created: int, model: str) -> bytes:
    """The fields that come first, ending in a comma."""
    kind = (
        ("chat.completion.chunk" if streamed else "chat.completion") if chat else "text_completion"
    )
    prefix = "chatcmpl" if chat else "cmpl"
    name = msgspec.json.encode(model).decode()
    return (
        f'{{"id":"{prefix}-{identity}","object":"{kind}","created":{created},"model":{name},'
    ).encode()


def render(request: Request, answer: Answer, behaviour: Behaviour = PLAIN) -> Rendered:
    """Every part of the answer, with what the behaviour leaves out or gets wrong in them."""
    usage, finish = not behaviour.no_usage, not behaviour.no_finish
    writer = (
        _ChatWriter(request, behaviour)
        if isinstance(request, ChatRequest)
        else _TextWriter(request)
    )
    body: dict[str, Any] = {"choices": [
        writer.whole(n, choice, choice.finish if finish else None)
        for n, choice in enumerate(answer.choices)
    ]}  # fmt: skip
    if request.return_token_ids and answer.prompts:
        body["prompt_token_ids"] = prompt_ids(answer)
    if usage:
        body["usage"] = usage_object(answer, answer.completion_tokens)
    stream = request.stream
    return Rendered(
        body=_rest(body),
        lead=list(_lead(writer, request, answer, usage)) if stream else (),
        frames=list(_frames(writer, request, answer, usage)) if stream else (),
        finish=list(_finish(writer, request, answer, finish, usage)) if stream else (),
        usage=_rest({"choices": [], "usage": usage_object(answer, answer.completion_tokens)})
        if usage and request.wants_usage
        else None,
        tokens=answer.completion_tokens,
    )


def prompt_ids(answer: Answer) -> list[int]:
    """The token ids of the first prompt, with what was begun of the answer."""
    prompt = answer.prompts[0]
    return [*prompt.ids, *unit_ids(prompt.begun)]


def usage_object(answer: Answer, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage object."""
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": answer.prompt_tokens + completion_tokens,
    }


def _rest(fields: dict[str, Any]) -> bytes:
    return msgspec.json.encode(fields)[1:]


def _lead(writer: _Writer, request: Request, answer: Answer, usage: bool) -> Iterator[bytes]:
    for n, _ in enumerate(answer.choices):
        if (choice := writer.opening(n)) is not None:
            event: dict[str, Any] = {"choices": [choice]}
            if request.return_token_ids:
                event["prompt_token_ids"] = prompt_ids(answer)
            if usage and request.counts_along:
                event["usage"] = usage_object(answer, 0)
            yield _rest(event)


def _frames(
    writer: _Writer, request: Request, answer: Answer, usage: bool
) -> Iterator[list[bytes]]:
    said = 0
    offsets = [0] * len(answer.choices)
    for units in zip_longest(*(choice.units for choice in answer.choices)):
        events = []
        for n, unit in enumerate(units):
            if unit is None:
                continue
            said += 1
            event: dict[str, Any] = {"choices": [writer.delta(n, unit, offsets[n])]}
            if said == 1 and request.return_token_ids and isinstance(request, CompletionRequest):
                event["choices"][0]["prompt_token_ids"] = prompt_ids(answer)  # where vLLM has it
            if usage and request.counts_along:
                event["usage"] = usage_object(answer, said)
            offsets[n] += len(unit) if isinstance(unit, str) else 0
            events.append(_rest(event))
        yield events


def _finish(
    writer: _Writer, request: Request, answer: Answer, finish: bool, usage: bool
) -> Iterator[bytes]:
    for n, choice in enumerate(answer.choices):
        if finish:
            event: dict[str, Any] = {"choices": [writer.ending(n, choice)]}
            if usage and request.counts_along:
                event["usage"] = usage_object(answer, answer.completion_tokens)
            yield _rest(event)


class _ChatWriter:
    """Choices of `chat.completion` and `chat.completion.chunk`."""

    def __init__(self, request: ChatRequest, behaviour: Behaviour) -> None:
        self._alternatives = request.alternatives
        self._ids = request.return_token_ids
        self._behaviour = behaviour
        self._names: dict[tuple[int, int], str | None] = {}  # of calls, by choice and number

    def whole(self, n: int, choice: Choice, finish: str | None) -> dict[str, Any]:
        calls = [self._call(choice, unit) for unit in choice.units if _opens_call(unit)]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text or None}
        if calls:
            message["tool_calls"] = calls
        elif message["content"] is None:
            message["content"] = ""
        return self._with_ids(
            {"index": n, "message": message, "logprobs": self._logprobs(choice.units),
             "finish_reason": self._finish(finish), **self._stop(choice)},
            choice.units,
        )  # fmt: skip

    def _stop(self, choice: Choice) -> dict[str, Any]:
        return {"stop_reason": choice.stop} if self._behaviour.stop_reason else {}

    def _finish(self, finish: str | None) -> str | None:
        return "stop" if finish == "tool_calls" and self._behaviour.finish_stop else finish

    def _call(self, choice: Choice, first: Unit) -> dict[str, Any]:
        assert isinstance(first, CallPiece)
        pieces = [u for u in choice.units if isinstance(u, CallPiece) and u.call == first.call]
        arguments = "".join(piece.arguments for piece in pieces)
        function = {"name": first.name, "arguments": arguments}
        call = {"id": first.id, "type": "function", "function": function}
        return with_faults(call, first.name, self._behaviour)

    def opening(self, n: int) -> dict[str, Any] | None:
        return self._chunk(n, {"role": "assistant", "content": ""})

    def delta(self, n: int, unit: Unit, offset: int) -> dict[str, Any]:
        if isinstance(unit, str):
            return self._with_ids(self._chunk(n, {"content": unit}, [unit]), [unit])
        call: dict[str, Any] = {"index": unit.call, "function": {"arguments": unit.arguments}}
        if _opens_call(unit):
            call = {"index": unit.call, "id": unit.id, "type": "function",
                    "function": {"name": unit.name, "arguments": ""}}  # fmt: skip
            self._names[n, unit.call] = unit.name
        call = with_faults(call, self._names[n, unit.call], self._behaviour)
        return self._with_ids(self._chunk(n, {"tool_calls": [call]}), [unit])

    def ending(self, n: int, choice: Choice) -> dict[str, Any]:
        finish = self._finish(choice.finish)
        return {**self._chunk(n, {}), "finish_reason": finish, **self._stop(choice)}

    def _chunk(self, n: int, delta: dict[str, Any], units: Sequence[Unit] = ()) -> dict[str, Any]:
        logprobs = self._logprobs(units) if units else None
        return {"index": n, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _with_ids(self, choice: dict[str, Any], units: Sequence[Unit]) -> dict[str, Any]:
        if self._ids:
            choice["token_ids"] = [i for unit in units for i in unit_ids(unit)]
        return choice

    def _logprobs(self, units: Sequence[Unit]) -> dict[str, Any] | None:
        if self._alternatives is None:
            return None
        return {"content": [
            {**_token_logprob(unit),
             "top_logprobs": [_token_logprob(t) for t in _ranking(unit, self._alternatives)]}
            for unit in units if isinstance(unit, str)
        ]}  # fmt: skip


class _TextWriter:
    """Choices of `text_completion`."""

    def __init__(self, request: CompletionRequest) -> None:
        self._alternatives = request.alternatives
        self._ids = request.return_token_ids

    def whole(self, n: int, choice: Choice, finish: str | None) -> dict[str, Any]:
        return self._choice(n, choice.text, choice.units, 0, finish)

    def opening(self, n: int) -> dict[str, Any] | None:
        return None

    def delta(self, n: int, unit: Unit, offset: int) -> dict[str, Any]:
        assert isinstance(unit, str)
        return self._choice(n, unit, [unit], offset, None)

    def ending(self, n: int, choice: Choice) -> dict[str, Any]:
        return self._choice(n, "", [], 0, choice.finish)

    def _choice(
        self, n: int, text: str, units: Sequence[Unit], offset: int, finish: str | None
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": n, "text": text, "logprobs": None,
                                  "finish_reason": finish}  # fmt: skip
        tokens = [unit for unit in units if isinstance(unit, str)]
        if self._alternatives is not None and tokens:
            choice["logprobs"] = self._logprobs(tokens, offset)
        if self._ids:
            choice["token_ids"] = [i for unit in units for i in unit_ids(unit)]
        return choice

    def _logprobs(self, tokens: list[str], offset: int) -> dict[str, Any]:
        offsets = []
        for token in tokens:
            offsets.append(offset)
            offset += len(token)
        count = self._alternatives or 0
        return {
            "tokens": tokens,
            "token_logprobs": [_logprob(token) for token in tokens],
            "top_logprobs": [{t: _logprob(t) for t in _ranking(u, count)} for u in tokens],
            "text_offset": offsets,
        }


_Writer = _ChatWriter | _TextWriter


def _opens_call(unit: Unit) -> bool:
    return isinstance(unit, CallPiece) and unit.id is not None


def _logprob(token: str) -> float:
    return -(1 + zlib.crc32(token.encode()) % 1000) / 1000


def _token_logprob(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": _logprob(token), "bytes": list(token.encode())}


def _ranking(token: str, count: int) -> list[str]:
    """The token itself, then others that could have been."""
    return [token, *(f"{token}{i}" for i in range(1, count))][:count]
