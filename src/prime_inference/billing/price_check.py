"""A price that looks wrong by a factor is refused before it bills anybody.

Prices are typed in dollars per million tokens by people who also read prices per token, and
per thousand requests by people who also read them per request: the classic mistakes are
factors of 1,000,000 and 1,000, one way or the other, and a part that was left at 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prime_inference.billing.rating import cost
from prime_inference.domain.errors import InvalidRequest, PriceDoubtful
from prime_inference.domain.money import usd_per_mtok, usd_text
from prime_inference.domain.prices import BASIS_POINTS, Price
from prime_inference.domain.reservations import Period
from prime_inference.domain.usage import Usage

LOWEST_RATE = 100  # $0.0001 per million tokens: a tenth of the cheapest cached prompt on sale
HIGHEST_RATE = 5_000_000_000  # $5,000: eight times the dearest completion ever listed ($600)
LOWEST_REQUEST = 100_000_000  # $0.10 per thousand: a fiftieth of the usual $5 for a search
HIGHEST_REQUEST = 1_000_000_000_000  # $1,000 per thousand: a dollar each
LOWEST_DISCOUNT = 100  # 1 %: what is less was typed as a fraction
MOST_RATE = 10**12  # a dollar a token: a million tokens of it fit 9,000 times into a balance
MOST_REQUEST = 10**15  # a thousand dollars a request
MOST_CHANGE = 100  # no price of a model has moved by more at once; mistakes are 1,000 and more
LOWEST_SLOT_HOUR = 100_000  # $0.0001: a thousandth of a share of the cheapest GPU's hour
HIGHEST_SLOT_HOUR = 100_000_000_000  # $100: no GPU's hour costs that, and a slot is a part of one
MONTH_HOURS = 730
SAMPLE = Usage(prompt_tokens=1_000, completion_tokens=500)
TOKEN_RATES = ("prompt", "cached_prompt", "completion", "reasoning")
CONFIRM = "Send 'confirm': true (`prime inference prices set --confirm`) if that is meant."
CONFIRM_SLOTS = (
    "Send 'confirm': true (`prime inference reservations create --confirm`) if that is meant."
)


@dataclass(frozen=True, slots=True)
class Preview:
    """What a price would mean, and what looks wrong about it."""

    doubts: tuple[str, ...]
    sample_cost: int  # nanodollars of SAMPLE
    previous_sample_cost: int | None
    flex_cost: int | None = None  # of the same; None: there is no batch discount, nor was one
    previous_flex_cost: int | None = None

    def __str__(self) -> str:
        flex = "" if self.flex_cost is None else (
            f", as flex {_shown(self.flex_cost, self.previous_flex_cost)}"
        )  # fmt: skip
        return (
            f"{SAMPLE.prompt_tokens} prompt and {SAMPLE.completion_tokens} completion tokens"
            f" would cost {_shown(self.sample_cost, self.previous_sample_cost)}{flex}."
        )

    def confirmed(self) -> None:
        """Raises PriceDoubtful, with the preview and how to confirm, if there is a doubt."""
        if self.doubts:
            raise PriceDoubtful(
                f"{' '.join(self.doubts)} {self} {CONFIRM}",
                details={"preview": str(self), "doubts": list(self.doubts), "confirm": CONFIRM},
            )


def preview(price: Price, previous: Price | None) -> Preview:
    """What the new price means beside the one in effect before it.

    Raises InvalidRequest for one that no confirmation makes possible.
    """
    if max(getattr(price, name) for name in TOKEN_RATES) > MOST_RATE:
        raise InvalidRequest("No token costs more than a dollar: $1000000 per million.")
    if price.request > MOST_REQUEST:
        raise InvalidRequest("No request costs more than $1000: $1000000 per thousand.")
    discounted = price.batch_discount or (previous is not None and previous.batch_discount)
    return Preview(
        tuple(_doubts(price, previous)),
        cost(SAMPLE, price),
        None if previous is None else cost(SAMPLE, previous),
        cost(SAMPLE, price, batch=True) if discounted else None,
        cost(SAMPLE, previous, batch=True) if discounted and previous is not None else None,
    )


def require_usual_slot_price(price: int, slots: int, period: Period) -> None:
    """Raises PriceDoubtful for a reservation's price of a period that looks like a mistake."""
    hours = MONTH_HOURS if period is Period.MONTH else 1
    of_one = price // (slots * hours)
    if LOWEST_SLOT_HOUR <= of_one <= HIGHEST_SLOT_HOUR:
        return
    wrong = "more than any slot costs" if of_one > HIGHEST_SLOT_HOUR else "next to nothing"
    shown = f"{slots} slots would cost ${usd_text(price)} for each {period} that begins"
    doubt = f"That is ${usd_text(of_one)} for an hour of a slot: {wrong}."
    raise PriceDoubtful(
        f"{shown}. {doubt} {CONFIRM_SLOTS}",
        param="price_usd",
        details={"preview": f"{shown}.", "doubts": [doubt], "confirm": CONFIRM_SLOTS},
    )


def _doubts(price: Price, previous: Price | None) -> Iterator[str]:
    for name in TOKEN_RATES:
        rate, before = getattr(price, name), getattr(previous, name, 0)
        shown = f"{name.replace('_', ' ')} ${usd_per_mtok(rate):f} per million tokens"
        if rate == 0:
            yield f"{shown} is free."
        elif rate < LOWEST_RATE:
            yield f"{shown} is next to nothing: is it a price per token?"
        elif rate > HIGHEST_RATE:
            yield f"{shown} is more than any model costs: is it a price per billion?"
        elif _far(rate, before):
            yield f"{shown} was ${usd_per_mtok(before):f}: over {MOST_CHANGE} times apart."
    if price.cached_prompt > price.prompt:
        yield "cached prompt costs more than prompt."
    yield from _request_doubts(price.request, getattr(previous, "request", 0))
    yield from _discount_doubts(price.batch_discount, getattr(previous, "batch_discount", 0))


def _discount_doubts(discount: int, before: int) -> Iterator[str]:
    shown = f"batch discount {discount / 100} %"
    if discount == BASIS_POINTS:
        yield f"{shown} makes batches free."
    elif 0 < discount < LOWEST_DISCOUNT:
        yield f"{shown} is next to nothing: is it a fraction?"
    elif before and not discount:
        yield f"{shown} was {before / 100} %: flex would cost as much as everything else."
    elif _far(BASIS_POINTS - discount, BASIS_POINTS - before):
        yield f"{shown} was {before / 100} %: flex would be over {MOST_CHANGE} times apart."


def _request_doubts(rate: int, before: int) -> Iterator[str]:
    shown = f"request ${usd_text(rate)} per thousand"
    if rate == 0 and before:
        yield f"{shown} was ${usd_text(before)}: requests would be free."
    elif 0 < rate < LOWEST_REQUEST:
        yield f"{shown} is next to nothing: is it a price per request?"
    elif rate > HIGHEST_REQUEST:
        yield f"{shown} is over a dollar each: is it a price per million?"
    elif rate and _far(rate, before):
        yield f"{shown} was ${usd_text(before)}: over {MOST_CHANGE} times apart."


def _shown(cost: int, before: int | None) -> str:
    return f"${usd_text(cost)}" + ("" if before is None else f" (now ${usd_text(before)})")


def _far(rate: int, before: int) -> bool:
    return before > 0 and not before <= rate * MOST_CHANGE <= before * MOST_CHANGE**2
