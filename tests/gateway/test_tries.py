"""Where an answer that has begun goes on, when every slot is taken."""

from __future__ import annotations

import asyncio

import pytest

from prime_inference.domain.errors import UpstreamCut
from prime_inference.gateway import tries
from prime_inference.gateway.tries import Tries
from prime_inference.reliability.slots import Reason, Refusal


async def test_an_answer_that_has_begun_looks_often_whatever_newcomers_are_told(
    monkeypatch: pytest.MonkeyPatch,
):
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    one = Tries.__new__(Tries)
    one._cut, one._paused = UpstreamCut("It broke."), 0.0
    looks = int(tries.LONGEST_PAUSE / tries.BEGUN_LOOKS_S)
    for _ in range(looks):
        await one._wait_on(Refusal(Reason.NOT_WORTH_WAITING, 60.0))
    with pytest.raises(UpstreamCut):
        await one._wait_on(Refusal(Reason.NOT_WORTH_WAITING, 60.0))
    assert pauses == [tries.BEGUN_LOOKS_S] * looks
