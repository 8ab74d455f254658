"""The record of what engines have said: exact token ids, or none."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.domain.usage import Usage
from prime_inference.wire.openai.answers import Answer
from prime_inference.wire.openai.said import Said


def take(said: Said, choice: dict[str, Any], count: int | None = None, **fields: Any) -> Answer:
    answer = msgspec.json.decode(msgspec.json.encode({"choices": [choice], **fields}), type=Answer)
    reported = None if count is None else Usage(7, count, source="upstream")
    said.take(answer, reported)
    return answer


def vllm(text: str | None, *ids: int, **delta: Any) -> dict[str, Any]:
    return {"delta": {"content": text, **delta}, "token_ids": list(ids)}


def llama(text: str, token: int) -> dict[str, Any]:
    return {"delta": {"content": text}, "logprobs": {"content": [{"id": token, "prob": 1}]}}


def test_text_and_ids_add_up():
    said = Said("token_ids")
    take(said, {"delta": {"role": "assistant"}}, 0, prompt_token_ids=[1, 2])
    take(said, vllm("one", 11), 1)
    take(said, vllm(" two", 12, 13), 3)
    assert (said.text, said.ids, said.prompt_ids, said.tokens) == (
        "one two", [11, 12, 13], [1, 2], 3,
    )  # fmt: skip


def test_tokens_whose_text_is_held_back_are_not_said():
    said = Said("token_ids")
    take(said, vllm("one", 11), 1)
    take(said, vllm("", 12), 2)  # part of a character
    assert (said.ids, said.tokens) == ([11], 1)
    take(said, vllm("é", 13), 3)
    assert (said.ids, said.tokens) == ([11, 12, 13], 3)


def test_ids_that_do_not_add_up_to_the_engines_count_are_none():
    said = Said("logprobs", withheld=True)
    take(said, llama("one", 11), 1)
    take(said, llama("😀", 218), 4)  # of the tokens of a character llama.cpp names the last
    assert (said.ids, said.tokens, said.text) == (None, 4, "one😀")


def test_an_engine_that_names_no_tokens_has_none():
    said = Said("token_ids")
    take(said, {"delta": {"content": "one"}}, 1)
    assert (said.ids, said.text, said.tokens) == (None, "one", 1)


def test_logprobs_that_only_we_asked_for_are_not_the_clients():
    said = Said("logprobs", withheld=True)
    assert bytes(take(said, llama("one", 11), 1).choices[0].logprobs) == b"null"
    said = Said("logprobs")
    assert b'"id":11' in bytes(take(said, llama("one", 11), 1).choices[0].logprobs)
    assert said.ids == [11]


def test_another_engine_counts_from_nothing():
    said = Said("token_ids")
    take(said, vllm("one", 11), 1)
    take(said, vllm("", 12), 2)
    said.taken_up("token_ids")
    take(said, vllm(" two", 20), 1)
    assert (said.ids, said.tokens, said.text) == ([11, 20], 2, "one two")
    said.taken_up(None)  # by text: which tokens it was read as is not known
    take(said, vllm(" three", 30), 1)
    assert (said.ids, said.tokens, said.text) == (None, 3, "one two three")


def test_what_is_more_than_text_is_noted():
    said = Said("token_ids")
    take(said, vllm(None, 11, reasoning_content="hm"), 1)
    assert (said.reasoned, said.others, said.ids, said.text) == (True, False, [11], "")
    take(said, vllm(None, 12, tool_calls=[{"index": 0, "function": {"name": "f"}}]), 2)
    assert said.others


def test_text_that_the_next_engine_was_not_given_is_not_said_twice():
    said = Said(None)
    take(said, vllm("one \n"), 2)
    said.taken_up(None, again=" \n")
    deltas = [
        take(said, vllm(text), count).choices[0].delta
        for count, text in enumerate((" ", "\ntwo"), 1)
    ]
    assert [delta and delta.content for delta in deltas] == [None, "two"]
    take(said, vllm(" \nthree"), 4)
    assert said.text == "one \ntwo \nthree"
    assert said.tokens == 5  # one of the six was said before


def test_what_the_next_engine_writes_instead_is_kept():
    said = Said(None)
    take(said, vllm("one\n"), 1)
    said.taken_up(None, again="\n")
    take(said, vllm("two"), 1)  # it goes on without the space that the client has
    take(said, vllm("\nthree"), 2)
    assert (said.text, said.tokens) == ("one\ntwo\nthree", 3)


@given(st.text(" \n\t", max_size=4), st.text("ab \n", max_size=12), st.data())
def test_of_what_was_said_already_the_beginning_is_left_out_however_it_is_cut(
    again: str, text: str, data: st.DataObject
):
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=4).map(sorted))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    said = Said(None)
    take(said, vllm("x" + again), 1)
    said.taken_up(None, again=again)
    for piece in pieces:
        take(said, vllm(piece), None)
    same = next((i for i, (a, b) in enumerate(zip(again, text, strict=False)) if a != b),
                min(len(again), len(text)))  # fmt: skip
    assert said.text == "x" + again + text[same:]
