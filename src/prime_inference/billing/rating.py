"""From a generation to its cost (docs/billing.md, "What is billed")."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.generation import Generation, Outcome
from prime_inference.domain.limits import MOST_AMOUNT
from prime_inference.domain.money import PICO_PER_NANO
from prime_inference.domain.pools import FLEX
from prime_inference.domain.prices import BASIS_POINTS, Price
from prime_inference.domain.reservations import Reservation
from prime_inference.domain.usage import Usage
from prime_inference.domain.usage_event import NO_PRICE, UsageEvent

MICRO = 1_000_000
ROUTES_WITHOUT_COMPLETION = frozenset({"embeddings"})


def billable(route: str, outcome: Outcome, usage: Usage) -> bool:
    """Whether a generation costs anything at all."""
    if outcome == "complete" and route in ROUTES_WITHOUT_COMPLETION:
        return usage.prompt_tokens > 0
    return outcome in ("complete", "cancelled") and usage.completion_tokens > 0


def cost(usage: Usage, price: Price, *, batch: bool = False, discount: int = 0) -> int:
    """Nanodollars of a billable generation: exact, then rounded once, half up.

    `discount` is that of a reservation, in basis points; no batch runs on reserved slots.
    """
    cached = min(usage.cached_tokens, usage.prompt_tokens)
    reasoning = min(usage.reasoning_tokens, usage.completion_tokens)
    picodollars = (
        (usage.prompt_tokens - cached) * price.prompt
        + cached * price.cached_prompt
        + (usage.completion_tokens - reasoning) * price.completion
        + reasoning * price.reasoning
        + price.request
    )
    if batch:
        discount = price.batch_discount
    if discount:
        picodollars *= BASIS_POINTS - discount
        return _divided(picodollars, PICO_PER_NANO * BASIS_POINTS)
    return _divided(picodollars, PICO_PER_NANO)


def most(price: Price, prompt_tokens: int, completion_tokens: int, *, batch: bool = False) -> int:
    """Nanodollars that a request can cost at most, rounded up: what is held for it."""
    dearest = max(price.prompt, price.cached_prompt)
    written = max(price.completion, price.reasoning)
    picodollars = prompt_tokens * dearest + completion_tokens * written + price.request
    paid = BASIS_POINTS - price.batch_discount if batch else BASIS_POINTS
    return -(-picodollars * paid // (PICO_PER_NANO * BASIS_POINTS))


def most_reserved(cost: int, reserved: Sequence[Reservation]) -> int:
    """What of `cost` a request can cost that runs on reserved slots only, rounded up."""
    discount = min(reservation.token_discount for reservation in reserved)
    return -(-cost * (BASIS_POINTS - discount) // BASIS_POINTS)


def usage_event(generation: Generation, price: Price | None, *, discount: int = 0) -> UsageEvent:
    """The account of a generation under the price in effect when it was accepted.

    Flex pays the price's batch discount; `discount` is that of a reservation, in basis points.

    It costs no more than MOST_AMOUNT, as any transfer; what was cut to it is `estimated`.
    """
    usage = generation.usage
    charged = price is not None and billable(generation.route, generation.outcome, usage)
    due = 0
    if charged and price is not None:
        due = cost(usage, price, batch=generation.pool == FLEX, discount=discount)
    return UsageEvent(
        generation.tenant,
        generation.id,
        "usage",
        generation.key_id,
        generation.model,
        generation.deployment,
        generation.pool,
        generation.route,
        generation.outcome,
        generation.streamed,
        NO_PRICE if price is None else price.version,
        usage.prompt_tokens,
        min(usage.cached_tokens, usage.prompt_tokens),
        usage.completion_tokens,
        min(usage.reasoning_tokens, usage.completion_tokens),
        min(due, MOST_AMOUNT),
        int(generation.started_at * MICRO),
        int(generation.first_token_seconds * MICRO),
        int(generation.duration_seconds * MICRO),
        usage.source == "counted" or due > MOST_AMOUNT,
    )


def _divided(numerator: int, denominator: int) -> int:
    """Half up; both are not negative."""
    return (2 * numerator + denominator) // (2 * denominator)
