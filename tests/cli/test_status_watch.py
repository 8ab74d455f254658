"""status --watch goes on while a gateway is away."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from prime_inference.cli import status
from prime_inference.cli.failures import NothingAnswers


class Away:
    """A gateway that answers every second time, and then Ctrl-C is pressed."""

    def __init__(self, *, at_first: bool) -> None:
        self._here = at_first
        self._asked = 0

    def fleet(self) -> dict[str, Any]:
        self._asked += 1
        if self._asked == 6:
            raise KeyboardInterrupt
        here, self._here = self._here, not self._here
        if not here:
            raise NothingAnswers("No gateway answers.")
        return {"asked": self._asked}


def watch(monkeypatch: pytest.MonkeyPatch, away: Away) -> None:
    @contextlib.contextmanager
    def connect(*_: object) -> Iterator[Away]:
        yield away

    monkeypatch.setattr(status, "connect", connect)
    status.status("json", watch=True, every=0.001)


def test_a_gateway_that_is_away_for_a_look_is_looked_for_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        watch(monkeypatch, Away(at_first=True))
    out, err = capsys.readouterr()
    assert [json.loads(line)["asked"] for line in out.splitlines()] == [1, 3, 5]
    assert err.count("No gateway answers. Looking again.") == 2


def test_one_that_was_never_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NothingAnswers):
        watch(monkeypatch, Away(at_first=False))
