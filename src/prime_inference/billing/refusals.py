"""What a caller is told when a limit is reached: which, how much is left, when it resets."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.errors import (
    ApiError,
    BudgetExceeded,
    RateLimited,
    ReservationExhausted,
)
from prime_inference.domain.limits import Limit, LimitKind, window_end
from prime_inference.domain.money import usd_text
from prime_inference.domain.pools import RESERVED
from prime_inference.domain.reservations import MINUTE
from prime_inference.ports.limits import Demand, LimitState

CONCURRENCY_RETRY_S = 1.0  # nobody knows when one of the running requests ends


def refusal(limit: Limit, demand: Demand, state: LimitState, now: float) -> ApiError:
    """The error to raise; `now` is in seconds since the epoch."""
    if limit.kind.is_budget:
        return _budget(limit, demand, state, now)
    if limit.kind is LimitKind.RESERVED_OUTPUT:
        return _output(limit, state, now)
    wait = CONCURRENCY_RETRY_S if limit.kind is LimitKind.CONCURRENCY else state.wait_s
    if limit.kind is LimitKind.CONCURRENCY:
        what = f"{limit.most} requests at a time"
    else:
        what = f"{limit.most} {'tokens' if 'tokens' in limit.kind else 'requests'} per minute"
    return RateLimited(
        f"The limit of {what}{_over(limit)} is reached.",
        retry_after=wait,
        details=_details(limit, limit.most, state.left, now + wait),
        headers=_headers(limit, str(limit.most), str(state.left), wait),
    )


def _output(limit: Limit, state: LimitState, now: float) -> ReservationExhausted:
    """The wait is until what was drawn too much has come in again."""
    per_second = limit.most // MINUTE
    return ReservationExhausted(
        f"The {per_second} output tokens per second that are reserved of {limit.model} are used"
        " up. Try again shortly.",
        reservations=[limit.id.removeprefix(RESERVED)],
        over="tokens_per_second",
        retry_after=state.wait_s,
        details={
            "tokens_per_second": per_second,
            **_details(limit, limit.most, state.left, now + state.wait_s),
        },
        headers=_headers(limit, str(limit.most), str(state.left), state.wait_s),
    )


def soonest(refusals: Sequence[ReservationExhausted]) -> ReservationExhausted:
    """That of the reservation which has paid first, naming all of them."""
    found = min(refusals, key=lambda each: each.retry_after or 0.0)
    found.reservations = tuple(name for each in refusals for name in each.reservations)
    found.details["reservations"] = list(found.reservations)
    return found


def _budget(limit: Limit, demand: Demand, state: LimitState, now: float) -> BudgetExceeded:
    end = window_end(limit.kind, now)
    if limit.kind is LimitKind.WALLET:
        return _empty_wallet(limit, demand, state)
    period = limit.kind.removeprefix("budget_")
    hint = " Lower max_tokens, or ask for a higher budget." if state.left else ""
    most, left = usd_text(limit.most), usd_text(state.left)
    return BudgetExceeded(
        f"This request could cost ${usd_text(demand.amount)}; of the {period} budget of"
        f" ${most}{_over(limit)} ${left} is left.{hint}",
        retry_after=None if end is None else end - now,
        details=_details(limit, most, left, end),
        headers=_headers(limit, most, left, None if end is None else end - now),
    )


def _empty_wallet(limit: Limit, demand: Demand, state: LimitState) -> BudgetExceeded:
    most, left = usd_text(limit.most), usd_text(state.left)
    hint = "Lower max_tokens, or add credit." if state.left else "Add credit."
    return BudgetExceeded(
        f"This request could cost ${usd_text(demand.amount)}; ${left} of the prepaid balance is"
        f" left. {hint}",
        details=_details(limit, most, left, None),
        headers=_headers(limit, most, left, None),
    )


def _over(limit: Limit) -> str:
    names = [
        name
        for name, value in (
            ("this key", limit.key_id),
            ("this team", limit.tenant),
            (str(limit.model), limit.model),
        )
        if value is not None
    ]
    return f" on {' and '.join(names)}" if names else ""


def _details(limit: Limit, most: object, left: object, resets: float | None) -> dict[str, object]:
    return {
        "limit": {
            "id": limit.id,
            "kind": str(limit.kind),
            "limit": most,
            "remaining": left,
            "resets_at": None if resets is None else int(resets + 0.999),
        }
    }


def _headers(limit: Limit, most: str, left: str, wait: float | None) -> dict[str, str]:
    headers = {
        "x-ratelimit-name": f"{limit.kind}:{limit.id}",
        "x-ratelimit-limit": most,
        "x-ratelimit-remaining": left,
    }
    if wait is not None:
        headers["x-ratelimit-reset"] = f"{wait:.3f}"
    return headers
