"""A conversation on a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Iterator

import pytest

from .conftest import COMMAND
from .scripted_server import ScriptedServer
from .terminal_session import CTRL_C, CTRL_D, TerminalSession, on_terminal

PROMPT = "> "


@pytest.fixture
def chat(to_server: dict[str, str]) -> Iterator[TerminalSession]:
    """A conversation with the model that answers what it was sent."""
    with on_terminal([*COMMAND, "inference", "chat", "echo"], to_server) as session:
        session.expect(PROMPT)
        yield session


def say(session: TerminalSession, text: str) -> None:
    session.type(f"{text}\n")


def test_each_turn_carries_those_before_it(chat: TerminalSession):
    say(chat, "one")
    chat.expect("[user=one]")
    chat.expect(PROMPT)
    say(chat, "two")
    chat.expect("[user=one|assistant=[user=one]|user=two]")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_commands_set_the_system_prompt_forget_and_leave(chat: TerminalSession):
    say(chat, "one")
    chat.expect("[user=one]\n")
    say(chat, "/reset")
    chat.expect("forgotten")
    say(chat, "/system Be brief.")
    chat.expect("system prompt: Be brief.")
    say(chat, "two")
    chat.expect("[system=Be brief.|user=two]")
    say(chat, "/help")
    chat.expect("/reset")
    say(chat, "/exit")
    assert chat.end() == 0


def test_a_command_that_does_not_exist_is_not_sent(chat: TerminalSession, server: ScriptedServer):
    say(chat, "/rest")
    chat.expect("There is no command /rest. Did you mean /reset")
    chat.expect(PROMPT)
    say(chat, "")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert not server.chat_requests


def test_ctrl_c_at_the_prompt_throws_the_line_away(chat: TerminalSession, server: ScriptedServer):
    chat.type("half a line")
    chat.expect("half a line")
    chat.press_until(CTRL_C, PROMPT)
    say(chat, "whole")
    chat.expect("[user=whole]")
    chat.expect(PROMPT)
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert len(server.chat_requests) == 1


def test_ctrl_c_stops_the_answer_and_the_server_hears_of_it(
    to_server: dict[str, str], server: ScriptedServer
):
    with on_terminal([*COMMAND, "inference", "chat", "endless"], to_server) as session:
        session.expect(PROMPT)
        say(session, "hi")
        session.expect("and on ")
        session.type(CTRL_C)
        session.expect("stopped")
        assert server.client_left.wait(10)
        session.expect(PROMPT)
        session.type(CTRL_D)
        assert session.end() == 0


def test_a_failed_answer_does_not_end_the_conversation(
    to_server: dict[str, str], server: ScriptedServer
):
    with on_terminal([*COMMAND, "inference", "chat", "limited"], to_server) as session:
        session.expect(PROMPT)
        for _ in range(2):
            say(session, "hi")
            session.expect("Error: Too many requests.")
            session.expect(PROMPT)
        session.type(CTRL_D)
        assert session.end() == 0
    assert [len(seen.body["messages"]) for seen in server.chat_requests] == [1, 1]


def test_what_a_model_writes_cannot_command_the_terminal(to_server: dict[str, str]):
    with on_terminal([*COMMAND, "inference", "chat", "escape", "hi", "--stream"], to_server) as one:
        assert one.end() == 0
        assert "red ␛[31m ␛]52;c;ZXZpbA==␇ end" in one.screen
        assert "\x1b]52" not in one.screen


def test_without_a_server_it_ends_before_the_first_prompt(environment: dict[str, str]):
    nowhere = {**environment, "PRIME_INFERENCE_URL": "http://127.0.0.1:9/api/v1"}
    with on_terminal([*COMMAND, "inference", "chat", "m"], nowhere) as session:
        assert session.end() == 1
        assert "Nothing answers" in session.screen
        assert PROMPT not in session.screen


def test_with_the_output_in_a_file_there_is_no_conversation(to_server: dict[str, str]):
    terminal, theirs = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "inference", "chat", "echo"], stdin=theirs, capture_output=True,
        env=to_server, timeout=30, check=False,
    )  # fmt: skip
    os.close(theirs)
    os.close(terminal)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"No message" in done.stderr
