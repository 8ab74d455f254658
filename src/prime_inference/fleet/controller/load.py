"""How busy an instance is, by its frontend's own count."""

from __future__ import annotations

import asyncio

import httpx

from prime_inference.fleet.controller.reconcile import Found
from prime_inference.fleet.launcher.readiness import PROBE_SECONDS, parse_in_flight

MAX_BYTES = 2 * 1024 * 1024  # frontends write tens of kB


class FrontendLoad:
    """Asks frontends. Close it. Where a deployment has several frontends behind one address,
    one of them answers for itself."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(
            timeout=PROBE_SECONDS, trust_env=False, headers={"accept-encoding": "identity"}
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def in_flight(self, found: Found) -> int | None:
        """Requests that it works on; None where it does not say in time."""
        url = found.base_url.removesuffix("/v1") + "/metrics"
        text = bytearray()
        try:
            async with asyncio.timeout(PROBE_SECONDS), self._http.stream("GET", url) as answer:
                async for part in answer.aiter_raw():
                    text += part
                    if len(text) > MAX_BYTES:
                        return None
            return parse_in_flight(text.decode(errors="replace"))
        except (httpx.HTTPError, TimeoutError, ValueError, OverflowError):
            return None  # no answer, or one that is no count
