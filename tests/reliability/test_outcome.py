"""What counts against a deployment."""

from __future__ import annotations

import asyncio

import pytest

from prime_inference.domain.errors import (
    CapacityExhausted,
    ContextLengthExceeded,
    NoConnection,
    RateLimited,
    UpstreamCut,
    UpstreamDown,
    UpstreamFailure,
    UpstreamMalformed,
    UpstreamRefused,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from prime_inference.reliability.outcome import Outcome, outcome_of


@pytest.mark.parametrize(
    "error",
    [
        UpstreamFailure("500"),
        UpstreamUnreachable("reset"),
        UpstreamMalformed("garbage"),
        UpstreamCut("no finish reason"),
        UpstreamTimeout("slow", clock="first_token"),
    ],
)
def test_5xx_timeouts_resets_garbage_and_cuts_are_failures(error: UpstreamFailure) -> None:
    assert outcome_of(error) is Outcome.FAILED


@pytest.mark.parametrize(
    "error",
    [
        UpstreamRefused("400"),
        ContextLengthExceeded("too long"),
        CapacityExhausted("our own refusal, or the upstream's 429"),
        RateLimited("our own"),
        UpstreamDown("found down while it waited"),
        asyncio.CancelledError(),
    ],
)
def test_4xx_our_own_refusals_and_clients_that_left_are_nobodys_failure(
    error: BaseException,
) -> None:
    assert outcome_of(error) is Outcome.NEUTRAL


def test_a_503_is_a_failure_even_if_the_client_hears_of_capacity() -> None:
    assert outcome_of(CapacityExhausted("busy"), status=503) is Outcome.FAILED
    assert outcome_of(CapacityExhausted("busy"), status=429) is Outcome.NEUTRAL


@pytest.mark.parametrize("status", range(400, 500))
def test_no_4xx_of_an_engine_is_a_failure_of_it(status: int) -> None:
    for error in (UpstreamFailure("turned away"), UpstreamRefused(""), UpstreamMalformed("")):
        assert outcome_of(error, status) is Outcome.NEUTRAL


@pytest.mark.parametrize("status", range(500, 600))
def test_every_5xx_of_an_engine_is_a_failure_of_it(status: int) -> None:
    for error in (UpstreamFailure("failed"), CapacityExhausted("busy")):
        assert outcome_of(error, status) is Outcome.FAILED


@pytest.mark.parametrize("error", [NoConnection("refused"), UpstreamTimeout("", clock="connect")])
def test_a_failure_without_a_connection_reached_nobody(error: UpstreamFailure) -> None:
    assert outcome_of(error) is Outcome.UNREACHED


def test_a_whole_answer_is_an_answer() -> None:
    assert outcome_of(None) is Outcome.ANSWERED
