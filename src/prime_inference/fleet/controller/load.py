"""How busy an instance is, by its frontend's own count."""

from __future__ import annotations

from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.launcher.asking import Asker
from prime_inference.fleet.launcher.readiness import (
    MAX_METRICS_BYTES,
    metrics_text,
    parse_in_flight,
)


class FrontendLoad:
    """Asks frontends. Where a deployment has several frontends behind one address,
    one of them answers for itself."""

    def __init__(self) -> None:
        self._asker = Asker()

    async def in_flight(self, found: Found) -> int | None:
        """Requests that it works on; None where it does not say."""
        url = found.base_url.removesuffix("/v1") + "/metrics"
        return parse_in_flight(metrics_text(await self._asker.ask(url, MAX_METRICS_BYTES)))
