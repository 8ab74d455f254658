"""`GET /models`, `GET /models/{author}/{slug}` and its `/endpoints`.

Prices come in both styles that clients read: OpenRouter's, text in dollars per token,
and Prime's, numbers in dollars per million tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from prime_inference.domain.errors import ModelNotFound
from prime_inference.domain.models import Model
from prime_inference.domain.money import usd_per_mtok
from prime_inference.domain.prices import BASIS_POINTS, Price
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.gateway.operations import OWN
from prime_inference.gateway.upstreams import Upstream, Upstreams
from prime_inference.ports.catalog import Catalog
from prime_inference.routing.tool_calls import ToolCallRanking

PER_MILLION = Decimal(1_000_000)
ACCEPTED = sorted(OWN - {"model", "messages", "prompt", "input", "usage"})


class ModelsApi:
    """Answers from the catalogue; never asks an upstream, so it answers while one is down."""

    def __init__(
        self,
        catalog: Catalog,
        upstreams: Upstreams,
        ranking: ToolCallRanking,
        monotonic: Callable[[], float],
        price: Callable[[str], Price | None] = lambda model: None,
    ) -> None:
        self._price = price
        self._catalog = catalog
        self._upstreams = upstreams
        self._ranking = ranking
        self._monotonic = monotonic

    def list(self) -> dict[str, object]:
        return {
            "object": "list",
            "data": [self._describe(model) for model in self._catalog.models()],
        }

    def show(self, model_id: str) -> dict[str, object]:
        """Raises ModelNotFound."""
        return self._describe(self._find(model_id))

    def endpoints(self, model_id: str) -> dict[str, object]:
        """Raises ModelNotFound."""
        model = self._find(model_id)
        now = self._monotonic()
        return {
            "data": {
                "id": model.id,
                "name": model.name or model.id,
                "created": model.created,
                "architecture": _architecture(model),
                "endpoints": [
                    self._endpoint(model, upstream, now)
                    for upstream in self._upstreams.serving(model.id)
                ],
            }
        }

    def _find(self, model_id: str) -> Model:
        model = self._catalog.find(model_id)
        if model is None:
            known = [model.id for model in self._catalog.models()]
            raise ModelNotFound(
                f"The model '{model_id}' does not exist.{did_you_mean(model_id, known)}",
                param="model",
            )
        return model

    def _describe(self, model: Model) -> dict[str, object]:
        upstreams = self._upstreams.serving(model.id)
        return {
            "id": model.id,
            "object": "model",
            "created": model.created,
            "owned_by": model.id.partition("/")[0],
            "name": model.name or model.id,
            "revision": model.revision,
            "revisions": _revisions(model, upstreams),
            "context_length": model.context_tokens,
            "architecture": _architecture(model),
            "pricing": self._pricing(model),
            "specs": {
                "context_window": model.context_tokens,
                "max_output_tokens": model.max_output_tokens,
            },
            "supported_parameters": sorted(
                {name for upstream in upstreams for name in _parameters(upstream)}
            ),
        }

    def _endpoint(self, model: Model, upstream: Upstream, now: float) -> dict[str, object]:
        statistics = upstream.statistics
        return {
            "name": upstream.deployment.id,
            "provider_name": upstream.deployment.datacenter,
            "tag": upstream.deployment.datacenter,
            "revision": upstream.deployment.revision or model.revision,
            "context_length": model.context_tokens,
            "max_completion_tokens": model.max_output_tokens,
            "pricing": self._pricing(model),
            "supported_parameters": _parameters(upstream),
            "supports_implicit_caching": True,
            "status": 0,
            "uptime_last_5m": statistics.uptime(now, 5),
            "uptime_last_30m": statistics.uptime(now, 30),
            "uptime_last_1d": statistics.uptime(now, 24 * 60),
            "latency_last_30m": statistics.first_token(now),
            "throughput_last_30m": statistics.throughput(now),
            "tool_call_error_rate_last_2h": statistics.tool_call_error_rate(now),
            "tool_calls_deprioritised": self._ranking.is_behind(upstream.deployment.id),
        }

    def _pricing(self, model: Model) -> dict[str, object]:
        """The price in effect; where there are no accounts, the catalogue's own."""
        price = self._price(model.id)
        return _catalog_pricing(model) if price is None else _price_pricing(price)


def _revisions(model: Model, upstreams: Sequence[Upstream]) -> list[str]:
    """All that may answer a request now; several while a change is rolled out."""
    serving = [one.deployment for one in upstreams if not one.deployment.draining]
    return sorted({one.revision or model.revision for one in serving} or {model.revision})


def _parameters(upstream: Upstream) -> list[str]:
    return sorted({*upstream.deployment.parameters, *ACCEPTED})


def _architecture(model: Model) -> dict[str, object]:
    return {"input_modalities": sorted(model.modalities), "output_modalities": ["text"]}


def _catalog_pricing(model: Model) -> dict[str, object]:
    prices = {
        "prompt": Decimal(model.pricing.prompt),
        "completion": Decimal(model.pricing.completion),
        "input_cache_read": Decimal(model.pricing.cached_prompt),
    }
    return {
        **{name: _per_token(price) for name, price in prices.items()},
        "input_usd_per_mtok": float(prices["prompt"]),
        "output_usd_per_mtok": float(prices["completion"]),
        "cache_read_usd_per_mtok": float(prices["input_cache_read"]),
    }


def _price_pricing(price: Price) -> dict[str, object]:
    per_mtok = {
        "prompt": usd_per_mtok(price.prompt),
        "completion": usd_per_mtok(price.completion),
        "input_cache_read": usd_per_mtok(price.cached_prompt),
        "internal_reasoning": usd_per_mtok(price.reasoning),
        "request": usd_per_mtok(price.request),  # a request counts like one token
    }
    return {
        **{name: _per_token(rate) for name, rate in per_mtok.items()},
        "discount_batch": price.batch_discount / BASIS_POINTS,
        "input_usd_per_mtok": float(per_mtok["prompt"]),
        "output_usd_per_mtok": float(per_mtok["completion"]),
        "cache_read_usd_per_mtok": float(per_mtok["input_cache_read"]),
    }


def _per_token(usd_per_million: Decimal) -> str:
    return format((usd_per_million / PER_MILLION).normalize(), "f")
