"""What an attempt's end says about the deployment that served it."""

from __future__ import annotations

import enum

from prime_inference.domain.errors import (
    CapacityExhausted,
    ContextTooSmall,
    NoConnection,
    ToolCallBroken,
    UpstreamDown,
    UpstreamFailure,
    UpstreamRefused,
    UpstreamTimeout,
)

_NEUTRAL = (UpstreamRefused, ContextTooSmall, CapacityExhausted, UpstreamDown, ToolCallBroken)


class Outcome(enum.Enum):
    """The end of an attempt, as breakers count it."""

    ANSWERED = enum.auto()  # a whole answer
    FAILED = enum.auto()  # 5xx, timeout, reset, malformed, cut
    UNREACHED = enum.auto()  # a failure too: no connection was made
    NEUTRAL = enum.auto()  # nothing about the deployment: 4xx, 429, our refusal, client gone,
    # or a call that the model broke: `routing.tool_calls` sees to those


def outcome_of(error: BaseException | None, status: int = 0) -> Outcome:
    """Judge an attempt by the error it ended with (None: a whole answer).

    `status` is what the upstream answered, where it answered: a 503 is a failure of the
    deployment even if the client is told that there is no capacity. No 4xx is one: a client may
    have provoked it, and must not take a deployment from all others by it. (Whether it refuses
    everybody is found by `gateway.readiness`.) A refusal of the request by us, and a cancelled
    task (the client left), are nobody's failure either.
    """
    if error is None:
        return Outcome.ANSWERED
    if status >= 500:
        return Outcome.FAILED
    if status >= 400 or isinstance(error, _NEUTRAL):
        return Outcome.NEUTRAL
    if isinstance(error, NoConnection):
        return Outcome.UNREACHED
    if isinstance(error, UpstreamTimeout) and error.clock == "connect":
        return Outcome.UNREACHED
    if isinstance(error, UpstreamFailure):
        return Outcome.FAILED
    return Outcome.NEUTRAL
