from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.engines.mock.text import (
    ANSWER_MARK,
    VOCABULARY_SIZE,
    answer_tokens,
    chat_prompt,
    expected_text,
    expected_usage,
    ids_prompt,
    text_ids,
    text_prompt,
    token_text,
    tokens_after,
    word_id,
)

ROLES = st.sampled_from(["system", "user", "tool"])
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": ROLES, "content": st.text(max_size=40)}), min_size=1, max_size=4
)


def messages(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def test_a_token_depends_on_prompt_and_position_only():
    assert expected_text(messages("one"), 20).startswith(expected_text(messages("one"), 7))
    assert expected_text(messages("one")) != expected_text(messages("two"))


def test_choices_of_one_prompt_differ():
    assert expected_text(messages("one"), choice=1) != expected_text(messages("one"))


@given(MESSAGES, st.integers(0, 80), st.integers(1, 30))
def test_an_answer_cut_anywhere_in_its_text_is_continued_without_a_seam(said, cut, length):
    whole = expected_text(said, length=length)
    begun = whole[:cut]
    rest = expected_text([*said, {"role": "assistant", "content": begun}], length=length)
    assert begun + rest == whole


@given(MESSAGES, st.integers(0, 30))
def test_an_answer_begun_as_token_ids_is_continued_without_a_seam(said, cut):
    whole = expected_text(said, length=30)
    prompt = chat_prompt(said)
    tokens = answer_tokens(prompt, 30)
    ids = [*prompt.ids, *text_ids("".join(tokens[:cut]))]
    assert "".join(tokens[:cut]) + expected_text(ids, length=30) == whole


@given(st.text())
def test_a_bare_text_and_its_token_ids_are_the_same_prompt(text):
    assert text_prompt(text) == ids_prompt(text_ids(text))


@given(st.text(min_size=1).filter(lambda text: not any(c.isspace() for c in text)))
def test_ids_stay_in_the_vocabulary_and_clear_of_the_marks(text):
    assert ANSWER_MARK < word_id(text) < VOCABULARY_SIZE


def test_usage_counts_words_and_the_marks_of_the_template():
    assert expected_usage(messages("three little words"), 5) == (1 + 3 + 1, 5)


def test_usage_counts_an_answer_begun_as_prompt():
    begun = expected_text(messages("hi"), 4)
    said = [*messages("hi"), {"role": "assistant", "content": begun}]
    assert expected_usage(said, length=10) == (1 + 1 + 1 + 4, 6)


def test_text_begun_in_other_words_is_counted_in_words():
    assert tokens_after("not mine", ["a", " b", " c"]) == [" c"]


def test_parts_and_images_of_a_message_are_part_of_the_prompt():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    parts = [{"type": "text", "text": "look here"}, image]
    prompt = chat_prompt([{"role": "user", "content": parts}])
    assert prompt.tokens == 1 + 2 + 1 + 1


def test_tool_calls_of_the_assistant_are_part_of_the_prompt():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [{"role": "assistant", "content": None, "tool_calls": [call]}, *messages("go on")]
    assert chat_prompt(said) != chat_prompt([{"role": "assistant"}, *messages("go on")])


def test_only_the_first_token_comes_without_a_space():
    assert [token_text(7, k).startswith(" ") for k in range(3)] == [False, True, True]
