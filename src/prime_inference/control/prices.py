"""Prices in the admin API: text in dollars per million tokens."""

from __future__ import annotations

from prime_inference.billing.price_check import preview
from prime_inference.control.account_operations import AccountOperations
from prime_inference.control.calls import Call, Routes, basis_points, moment_of
from prime_inference.control.requests import NewPrice
from prime_inference.domain.errors import InvalidRequest
from prime_inference.domain.moments import iso
from prime_inference.domain.money import nanodollars, rate, usd_per_mtok, usd_text
from prime_inference.domain.prices import Price


class PriceOperations(AccountOperations):
    def routes(self) -> Routes:
        return {("GET", "prices"): self.list, ("POST", "prices"): self.add}

    def list(self, call: Call) -> object:
        model = call.query.get("model")
        found = [price for price in self._accounts.load().prices if model in (None, price.model)]
        return {"prices": [price_object(price) for price in found]}

    def add(self, call: Call) -> object:
        wanted = call.decode(NewPrice)
        self._names().require_models([wanted.model], to_come=wanted.new_model)
        known = [each for each in self._accounts.load().prices if each.model == wanted.model]
        version = max((price.version for price in known), default=0) + 1
        price = price_of(wanted, version, self._now())
        before = max(known, key=lambda each: each.version, default=None)
        seen = preview(price, before)
        if not wanted.confirm:
            seen.confirmed()
        answer = {**price_object(price), "preview": str(seen)}
        self._accounts.add_price(price, call.actor, self._now())
        return answer


def price_of(wanted: NewPrice, version: int, now: float) -> Price:
    """The price that was asked for. Raises InvalidRequest, ValueError."""
    begins = now
    if wanted.effective_from is not None:
        begins = moment_of(wanted.effective_from, "effective_from")
        if begins < now:
            raise InvalidRequest("A price cannot begin in the past.", param="effective_from")
    return Price(
        model=wanted.model,
        version=version,
        effective_from=begins,
        prompt=rate(wanted.prompt),
        cached_prompt=rate(wanted.cached_prompt or wanted.prompt),
        completion=rate(wanted.completion),
        reasoning=rate(wanted.reasoning or wanted.completion),
        request=nanodollars(wanted.request),  # dollars per 10³, in picodollars each: × 10⁹ too
        batch_discount=basis_points(wanted.batch_discount_percent, "batch_discount_percent"),
    )


def price_object(price: Price) -> dict[str, object]:
    """A price as JSON, in dollars per million tokens."""
    return {
        "model": price.model,
        "version": price.version,
        "effective_from": iso(price.effective_from),
        "prompt_usd_per_mtok": f"{usd_per_mtok(price.prompt):f}",
        "cached_prompt_usd_per_mtok": f"{usd_per_mtok(price.cached_prompt):f}",
        "completion_usd_per_mtok": f"{usd_per_mtok(price.completion):f}",
        "reasoning_usd_per_mtok": f"{usd_per_mtok(price.reasoning):f}",
        "request_usd_per_thousand": usd_text(price.request),
        "batch_discount_percent": price.batch_discount / 100,
    }
