"""What reaches a terminal, and what a pipe."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from prime_inference.cli.conversation import Conversation
from prime_inference.cli.options import wants_json, wants_plain
from prime_inference.cli.terminal import printable


@given(st.text())
def test_no_control_character_but_line_feed_and_tab_is_left(text: str):
    controls = {
        character for character in printable(text) if unicodedata.category(character) == "Cc"
    }
    assert controls <= {"\n", "\t"}


@given(st.text().filter(lambda text: text.isprintable()))
def test_text_without_control_characters_is_unchanged(text: str):
    assert printable(text) == text


def test_an_escape_sequence_is_shown_instead_of_obeyed():
    assert printable("\x1b[2J\r\n\x07") == "␛[2J\n␇"


def test_json_is_wanted_however_it_is_asked_for():
    for args in (["-o", "json"], ["--output", "json"], ["-ojson"], ["--output=json"]):
        assert wants_json(["inference", "models", *args])
    for args in (["-o", "table"], ["json"], ["-o"], ["--", "-o", "json"], []):
        assert not wants_json(["inference", "models", *args])


def test_plain_after_two_dashes_is_a_message():
    assert wants_plain(["inference", "chat", "m", "--plain"])
    assert not wants_plain(["inference", "chat", "m", "--", "--plain"])


@given(st.lists(st.tuples(st.text(min_size=1), st.text())), st.none() | st.text(min_size=1))
def test_turns_of_a_conversation_alternate(turns: list[tuple[str, str]], system: str | None):
    conversation = Conversation(system)
    for question, answer in turns:
        conversation.ask(question)
        conversation.answered(answer)
    roles = [turn["role"] for turn in conversation.messages()]
    answered = sum(1 for _, answer in turns if answer)
    assert roles == ["system"] * bool(system) + ["user", "assistant"] * answered
    conversation.reset()
    assert [turn["content"] for turn in conversation.messages()] == ([system] if system else [])
