"""One token on a spare slot: whether an ejected deployment answers again.

A canary is no request of anybody: it is not accounted for, and no client waits for it.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from prime_inference.domain.errors import UpstreamFailure, UpstreamMalformed, UpstreamTimeout
from prime_inference.domain.models import Deployment
from prime_inference.gateway.upstream_errors import refuses_us, upstream_error
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.reliability.outcome import Outcome, outcome_of
from prime_inference.reliability.slots import Slot

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0  # one token of a short prompt; a ticket lives for 15 s
MAX_ANSWER_BYTES = 1024 * 1024  # an embedding is 100 KB, one token is less than 1 KB
PROMPT = "Hi"


class Canaries:
    """Sends them, for `reliability.runner.Runner`."""

    def __init__(self, upstreams: Upstreams, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._upstreams = upstreams
        self._answer_seconds = answer_seconds
        self.sent: dict[tuple[str, Outcome], int] = {}  # by deployment, for metrics

    async def send(self, slot: Slot) -> None:
        """One canary on `slot`, which is told how it ended. Raises nothing."""
        upstream = self._upstreams.find(slot.deployment)
        if upstream is None:  # it has left the fleet since
            return
        failure: UpstreamFailure | None = None
        try:
            async with asyncio.timeout(self._answer_seconds):
                await _answer(upstream, self._answer_seconds)
        except TimeoutError:
            failure = UpstreamTimeout("A canary was not answered.", clock="total")
        except UpstreamFailure as error:
            failure = error
        status = failure.upstream_status if failure else 0
        # turned away, it was not the fault of a client's request: there is none
        outcome = Outcome.FAILED if refuses_us(status) else outcome_of(failure, status)
        if outcome is Outcome.ANSWERED:
            slot.first_token()
        slot.record(outcome)
        key = (slot.deployment, outcome)
        self.sent[key] = self.sent.get(key, 0) + 1
        log.info("canary to %s: %s", slot.deployment, failure or "answered")


async def refusal(upstream: Upstream, seconds: float) -> int:
    """The status by which a deployment turns a request of our own away; 0 if it does not.

    Whatever else fails is for others to judge.
    """
    try:
        async with asyncio.timeout(seconds):
            await _answer(upstream, seconds)
    except TimeoutError:
        return 0
    except UpstreamFailure as error:
        return error.upstream_status if refuses_us(error.upstream_status) else 0
    return 0


async def _answer(upstream: Upstream, seconds: float) -> None:
    """Raises UpstreamFailure unless there is an answer."""
    route, body = canary_request(upstream.deployment)
    response = await upstream.pool.fetch("POST", f"/{route}", body, connect_seconds=seconds)
    try:
        data = await response.read(MAX_ANSWER_BYTES)
        if response.status != 200:
            raise upstream_error(response.status, data, response.header(b"retry-after"), 0)
    finally:
        response.close()
    try:
        msgspec.json.decode(data, type=_Answered)
    except msgspec.MsgspecError as error:
        raise UpstreamMalformed("A canary's answer is not what an engine sends.") from error


class _Answered(msgspec.Struct):
    """What chat, completions and embeddings have in common: one of the two lists."""

    choices: list[msgspec.Raw] = []
    data: list[msgspec.Raw] = []

    def __post_init__(self) -> None:
        if not self.choices and not self.data:
            raise ValueError("no choices and no data")


def canary_request(deployment: Deployment) -> tuple[str, bytes]:
    """Route and body of the shortest request that the deployment serves."""
    fields: dict[str, object] = {"model": deployment.upstream_model}
    if "chat/completions" in deployment.routes:
        route = "chat/completions"
        fields |= {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 1}
    elif "completions" in deployment.routes:
        route = "completions"
        fields |= {"prompt": PROMPT, "max_tokens": 1}
    else:
        route = "embeddings"
        fields |= {"input": PROMPT}
    return route, msgspec.json.encode(fields)
