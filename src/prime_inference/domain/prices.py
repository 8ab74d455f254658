"""What a model costs, from when on."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from msgspec import Struct

BASIS_POINTS = 10_000


class Price(Struct, frozen=True, kw_only=True):
    """Rates of one model. Versions of a model count from 1; an old one is never changed.

    Rates are picodollars a token, `request` picodollars a request, `batch_discount` basis
    points (5000 is half price). Reasoning tokens cost what completion tokens cost, unless
    they have a rate of their own.
    """

    model: str
    version: int
    effective_from: float  # seconds since the epoch
    prompt: int
    cached_prompt: int
    completion: int
    reasoning: int
    request: int = 0
    batch_discount: int = 0

    def __post_init__(self) -> None:
        rates = (self.prompt, self.cached_prompt, self.completion, self.reasoning, self.request)
        if min(rates) < 0:
            raise ValueError("a rate is negative")
        if not 0 <= self.batch_discount <= BASIS_POINTS:
            raise ValueError("a discount is between 0 and 10000 basis points")


def free(model: str) -> Price:
    """What a model costs that has no price."""
    return Price(
        model=model,
        version=0,
        effective_from=0,
        prompt=0,
        cached_prompt=0,
        completion=0,
        reasoning=0,
    )


class PriceBook:
    """Every version of every model's price."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        by_model = defaultdict(list)
        for price in prices:
            by_model[price.model].append(price)
        self._versions = {
            model: sorted(versions, key=attrgetter("effective_from", "version"))
            for model, versions in by_model.items()
        }
        self._starts = {
            model: [price.effective_from for price in versions]
            for model, versions in self._versions.items()
        }

    def at(self, model: str, moment: float) -> Price | None:
        """The price in effect; of two from the same moment on, the later version."""
        starts = self._starts.get(model)
        if starts is None:
            return None
        place = bisect_right(starts, moment)
        return self._versions[model][place - 1] if place else None

    def versions(self, model: str) -> list[Price]:
        """By the moment they take effect."""
        return list(self._versions.get(model, ()))

    def models(self) -> list[str]:
        return sorted(self._versions)
