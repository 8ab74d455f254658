"""The conversation that `prime inference chat MODEL` holds on a terminal."""

from __future__ import annotations

import contextlib

from prime_inference.cli.answer import Answer
from prime_inference.cli.conversation import Conversation
from prime_inference.cli.failures import CommandFailed
from prime_inference.cli.talk import Talk
from prime_inference.domain.suggestions import did_you_mean

PROMPT = "> "
COMMANDS = {
    "/system": "/system TEXT  set the system prompt; without TEXT, show it",
    "/reset": "/reset        forget what was said",
    "/help": "/help         show this",
    "/exit": "/exit         leave (or Ctrl-D)",
}


def converse(talk: Talk, conversation: Conversation) -> None:
    """Ask and answer until the person leaves.

    When an answer fails, that is reported, what came of it is kept, and the talk goes on. Raises
    CommandFailed when the server cannot be spoken to at all.
    """
    with contextlib.suppress(ImportError):  # line editing, where Python was built with it
        import readline  # noqa: F401
    talk.client.models()
    talk.terminal.note(f"{talk.model}: /help for commands, Ctrl-C stops an answer, Ctrl-D leaves.")
    while (line := _next_line(talk)) is not None:
        if line.startswith("/"):
            if line.split()[0] in ("/exit", "/quit"):
                return
            _command(talk, conversation, line)
        elif line:
            _turn(talk, conversation, line)


def _next_line(talk: Talk) -> str | None:
    """What the person typed; None when they leave."""
    try:
        return input(PROMPT).strip()
    except EOFError:
        talk.terminal.line()
        return None
    except KeyboardInterrupt:  # throws away the line, as in a shell
        talk.terminal.line()
        return ""


def _turn(talk: Talk, conversation: Conversation, text: str) -> None:
    """One question and its answer; Ctrl-C keeps what was written so far."""
    conversation.ask(text)
    answer = Answer()
    try:
        talk.answer_streamed(conversation, answer)
    except KeyboardInterrupt:
        talk.terminal.note("stopped")
    except CommandFailed as failure:
        talk.terminal.error(failure)
    conversation.answered(answer.text)


def _command(talk: Talk, conversation: Conversation, line: str) -> None:
    name, _, rest = line.partition(" ")
    if name == "/reset":
        conversation.reset()
        talk.terminal.note("forgotten")
    elif name == "/system":
        conversation.system = rest.strip() or conversation.system
        talk.terminal.note(f"system prompt: {conversation.system or 'none'}")
    elif name == "/help":
        talk.terminal.note("\n".join(COMMANDS.values()))
    else:
        talk.terminal.note(f"There is no command {name}.{did_you_mean(name, COMMANDS)}")
