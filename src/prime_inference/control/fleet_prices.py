"""Prices of the fleet file: published in the price book for models that it has none of.

The price book is what is charged and shown; the file only fills it. A price is never changed
by it: where both have one and they differ, that is told, and the book stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from prime_inference.accounts.live import LiveDirectory
from prime_inference.billing.price_check import preview
from prime_inference.domain.errors import CannotStart, InvalidRequest
from prime_inference.domain.models import Model, Pricing
from prime_inference.domain.money import rate, usd_per_mtok
from prime_inference.domain.prices import Price
from prime_inference.ports.accounts import AccountExists, Accounts, AccountsUnavailable

log = logging.getLogger(__name__)

ACTOR = "fleet file"
FREE = Pricing()  # a file that says nothing of prices
RATES = ("prompt", "cached_prompt", "completion")


class FleetPrices:
    """Publishes through `accounts`; `directory` is what this gateway charges by."""

    def __init__(
        self, accounts: Accounts, directory: LiveDirectory, wall_clock: Callable[[], float]
    ) -> None:
        self._accounts = accounts
        self._directory = directory
        self._now = wall_clock

    async def publish(self, models: Sequence[Model]) -> None:
        """See to it that every price of the file is in the book, or told to be another there.

        Raises CannotStart for one that cannot be, or looks like a mistake.
        """
        now = self._now()
        wanted = [_price(model, now) for model in models if model.pricing != FREE]
        book = self._directory.current.prices
        new = [price for price in wanted if not book.versions(price.model)]
        for price in new:
            _require_sense(price)
        if new:
            try:
                await asyncio.to_thread(self._add, new, now)
                await self._directory.refresh()
            except AccountsUnavailable as error:
                raise CannotStart(
                    f"The fleet file's prices cannot be published: {error}"
                ) from error
        self._tell_conflicts(wanted)

    def _add(self, prices: Iterable[Price], now: float) -> None:
        for price in prices:
            try:
                self._accounts.add_price(price, ACTOR, now)
            except AccountExists:  # another gateway was first; whether it differs is told below
                continue
            log.info("%s costs what the fleet file says: %s", price.model, _shown(price))

    def _tell_conflicts(self, prices: Iterable[Price]) -> None:
        book = self._directory.current.prices
        for price in prices:
            charged = book.at(price.model, self._now()) or book.versions(price.model)[0]
            if any(getattr(price, name) != getattr(charged, name) for name in RATES):
                log.warning(
                    "the fleet file's price of %s is not what is charged: %s there, but %s by"
                    " version %d of the price book. Change one of them: `prime inference prices"
                    " set`, or `pricing` in the file.",
                    price.model,
                    _shown(price),
                    _shown(charged),
                    charged.version,
                )


def _price(model: Model, now: float) -> Price:
    """The first version of a model's price, as the file has it."""
    try:
        return Price(
            model=model.id,
            version=1,
            effective_from=now,
            prompt=rate(model.pricing.prompt),
            cached_prompt=rate(model.pricing.cached_prompt),
            completion=rate(model.pricing.completion),
            reasoning=rate(model.pricing.completion),
        )
    except ValueError as error:
        raise CannotStart(f"The fleet file's price of {model.id}: {error}") from error


def _require_sense(price: Price) -> None:
    """Raises CannotStart: nobody is there to confirm it."""
    try:
        preview(price, None).confirmed()
    except InvalidRequest as error:
        raise CannotStart(
            f"The fleet file's price of {price.model} is not published: {error.message} A price of"
            " the price book stands before one of the file."
        ) from error


def _shown(price: Price) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} ${usd_per_mtok(getattr(price, name)):f}" for name in RATES
    )
