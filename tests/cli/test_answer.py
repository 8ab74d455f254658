"""Putting an answer together from chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_inference.cli.answer import Answer
from prime_inference.cli.failures import AnswerCut, AnswerFailed
from prime_inference.cli.replies import Chunk, ChunkChoice, Delta, Usage

texts = st.lists(st.tuples(st.sampled_from(["answer", "thought"]), st.text(min_size=1)))


def chunk(text: str | None = None, finish: str | None = None, index: int = 0) -> Chunk:
    return Chunk([ChunkChoice(index, Delta(content=text), finish)])


@given(texts)
def test_pieces_come_out_as_they_went_in(pieces: list[tuple[str, str]]):
    answer = Answer()
    shown = []
    for kind, text in pieces:
        delta = Delta(content=text) if kind == "answer" else Delta(reasoning_content=text)
        shown += [(piece.kind, piece.text) for piece in answer.add(Chunk([ChunkChoice(0, delta)]))]
    assert shown == pieces
    assert answer.text == "".join(text for kind, text in pieces if kind == "answer")


def test_an_answer_without_a_finish_reason_is_cut():
    answer = Answer()
    list(answer.add(chunk("Half")))
    with pytest.raises(AnswerCut):
        answer.end()
    list(answer.add(chunk(finish="length")))
    answer.end()
    assert answer.finish_reason == "length"


def test_the_usage_chunk_after_the_end_changes_nothing_else():
    answer = Answer()
    list(answer.add(chunk("All", "stop")))
    assert list(answer.add(Chunk(usage=Usage(3, 2)))) == []
    assert (answer.text, answer.finish_reason, answer.usage) == ("All", "stop", Usage(3, 2))


def test_other_choices_than_the_first_are_not_mixed_in():
    answer = Answer()
    assert list(answer.add(chunk("other", "stop", index=1))) == []
    assert (answer.text, answer.finish_reason) == ("", None)


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        ({"message": "Gone.", "code": 502}, "Gone.", "502"),
        ({"message": " ", "type": "server_error"}, "The server gave no reason.", "server_error"),
        ({"message": None}, "The server gave no reason.", None),
        ("Gone.", "Gone.", None),
        ([1], "[1]", None),
    ],
)
def test_an_error_of_any_shape_ends_the_answer(error: object, message: str, code: str | None):
    with pytest.raises(AnswerFailed) as caught:
        list(Answer().add(Chunk(error=error)))
    assert (caught.value.message, caught.value.server_code) == (message, code)
