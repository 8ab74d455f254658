"""The objects of one kind in a cluster, as they change: one list, then watches."""

from __future__ import annotations

import asyncio
import logging

from prime_inference.domain.backoff import Backoff
from prime_inference.fleet.controller.datacenter import DatacenterUnreachable
from prime_inference.fleet.controller.kubernetes_client import Gone, KubernetesClient, Object

log = logging.getLogger(__name__)

WATCHED_SECONDS = 5.0  # a watch that lasted so long was one, though a proxy ended it


class Followed:
    """`objects` by name; `known` once they were listed, until the server does not answer."""

    def __init__(self, client: KubernetesClient, api: str, kind: str, selector: str) -> None:
        self.api = api
        self.kind = kind
        self.objects: dict[str, Object] = {}
        self.known = False
        self._client = client
        self._selector = selector
        self._version: str | None = None  # None: to be listed anew

    async def follow(self) -> None:
        """For ever. Between watches there are pauses, which grow while watches are short:
        whatever a server answers, it is not asked without end."""
        clock, backoff, told = asyncio.get_running_loop().time, Backoff(), ""
        while True:
            began = clock()
            try:
                await self._watch()
            except Gone:
                self._version = None
            except DatacenterUnreachable as error:
                if str(error) != told:
                    log.warning("%s: %s", self.kind, error)
                told = str(error)
                self._version, self.known = None, False
            except Exception:  # a defect: what is known may be long out of date
                self._version, self.known = None, False
                raise
            if clock() - began >= WATCHED_SECONDS:
                backoff, told = Backoff(), ""
            await asyncio.sleep(backoff.pause(0.0))

    async def _watch(self) -> None:
        """Until the server ends it. Raises Gone, DatacenterUnreachable."""
        if self._version is None:
            found, self._version = await self._client.list(self.api, self.kind, self._selector)
            self.objects = {one["metadata"]["name"]: one for one in found}
            self.known = True
        events = self._client.watch(self.api, self.kind, self._selector, self._version)
        async for happened, one in events:
            self._version = one["metadata"]["resourceVersion"]
            if happened == "DELETED":
                self.objects.pop(one["metadata"]["name"], None)
            elif happened != "BOOKMARK":
                self.objects[one["metadata"]["name"]] = one
