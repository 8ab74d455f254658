"""Where an answer that has begun goes on, when every slot is taken."""

from __future__ import annotations

import asyncio

import pytest

from prime_inference.domain.errors import UpstreamCut
from prime_inference.gateway import tries
from prime_inference.gateway.tries import Tries
from prime_inference.reliability.slots import Reason, Refusal


@pytest.mark.parametrize(("reason", "looks"), [(Reason.WAITED, {2, 3}), (Reason.DRAINED, {1})])
async def test_an_answer_that_has_begun_waits_as_long_as_something_may_come(
    monkeypatch: pytest.MonkeyPatch, reason: Reason, looks: set[int]
):
    found: list[Refusal] = []

    async def in_vain(self: Tries) -> Refusal:
        await asyncio.sleep(0.05)
        found.append(Refusal(reason, 60.0))
        return found[-1]

    monkeypatch.setattr(Tries, "_slot_soon", in_vain)
    monkeypatch.setattr(Tries, "_able", lambda self: {})
    monkeypatch.setattr(tries, "LONGEST_PAUSE", 0.12)
    one = Tries.__new__(Tries)
    one._cut, one._paused = UpstreamCut("It broke."), 0.0
    with pytest.raises(UpstreamCut):
        await one._wait()
    assert len(found) in looks
