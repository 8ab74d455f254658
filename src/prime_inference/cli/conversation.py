"""What was said so far in a chat. Pure: no terminal, no network."""

from __future__ import annotations

from typing import TypedDict


class Turn(TypedDict):
    """A message in the API's format."""

    role: str
    content: str


class Conversation:
    """The messages of a chat, the system prompt apart so that it outlives a reset."""

    def __init__(self, system: str | None = None) -> None:
        self.system = system
        self._turns: list[Turn] = []

    def messages(self) -> list[Turn]:
        """All of it, as a request carries it."""
        first: list[Turn] = [Turn(role="system", content=self.system)] if self.system else []
        return first + self._turns

    def ask(self, text: str) -> None:
        """The person's next message."""
        self._turns.append(Turn(role="user", content=text))

    def answered(self, text: str) -> None:
        """What the model answered, whole or as far as it got.

        A question that got nothing is taken back: models are trained on turns that alternate.
        """
        if text:
            self._turns.append(Turn(role="assistant", content=text))
        else:
            self._turns.pop()

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        self._turns.clear()
