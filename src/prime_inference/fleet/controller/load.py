"""How busy an instance is, by its frontend's own count."""

from __future__ import annotations

import httpx

from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.launcher.readiness import PROBE_SECONDS, parse_in_flight


class FrontendLoad:
    """Asks frontends. Close it. Where a deployment has several frontends behind one address,
    one of them answers for itself."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(timeout=PROBE_SECONDS, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def in_flight(self, found: Found) -> int | None:
        """Requests that it works on; None where it does not say."""
        try:
            answer = await self._http.get(found.base_url.removesuffix("/v1") + "/metrics")
        except httpx.HTTPError:
            return None
        return parse_in_flight(answer.text)
