"""How busy an instance is, by its frontend's own count."""

from __future__ import annotations

from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.launcher.readiness import (
    MAX_METRICS_BYTES,
    ask,
    parse_in_flight,
    probing_client,
)


class FrontendLoad:
    """Asks frontends. Close it. Where a deployment has several frontends behind one address,
    one of them answers for itself."""

    def __init__(self) -> None:
        self._http = probing_client()

    async def close(self) -> None:
        await self._http.aclose()

    async def in_flight(self, found: Found) -> int | None:
        """Requests that it works on; None where it does not say."""
        url = found.base_url.removesuffix("/v1") + "/metrics"
        answer = await ask(self._http, url, MAX_METRICS_BYTES)
        if answer is None or answer.body is None:
            return None
        return parse_in_flight(answer.body.decode(errors="replace"))
