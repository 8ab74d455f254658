"""The fleet that this gateway serves, replaced while requests go on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from prime_inference.domain.errors import CannotStart
from prime_inference.domain.fleet import Fleet, FleetInvalid, Override
from prime_inference.domain.models import Model
from prime_inference.gateway.upstreams import Upstreams
from prime_inference.ports.catalog import ChangingCatalog
from prime_inference.ports.fleet import FleetEditor, Launcher
from prime_inference.reliability.guard import Guard, ServesAnotherModel

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5  # looking costs a call of the kernel; two looks see a change: within a second


class LiveFleet:
    """Catalogue, upstreams and guard always hold the same fleet.

    A deployment that is gone is offered to no request; those it has go on, and its engine, if
    it runs here, stops after the last of them.
    """

    def __init__(
        self,
        catalog: ChangingCatalog,
        upstreams: Upstreams,
        guard: Guard,
        publish_prices: Callable[[Sequence[Model]], Awaitable[None]] | None = None,
    ) -> None:
        self._publish_prices = publish_prices  # raises CannotStart
        self._catalog = catalog
        self._upstreams = upstreams
        self._guard = guard
        self._editor: FleetEditor | None = None
        self._launcher: Launcher | None = None
        self._one_at_a_time = asyncio.Lock()
        self._down: set[str] = set()
        self._look_again = False  # the last look was not finished, or somebody asks for one
        self.fleet: Fleet | None = None  # None: it was given by the command line
        self.overrides: Sequence[Override] = ()  # edits that are in force
        self.reloads = 0
        self.failed_reloads = 0
        self.error: str | None = None  # why the last change was not taken over
        self.refused: Mapping[str, str] = {}  # what is listed and not served, with the reason

    def replace(self, fleet: Fleet) -> None:
        """Serve this one from now on. Raises FleetInvalid, and then nothing has changed."""
        try:
            self._guard.configure(fleet.deployments)
        except ServesAnotherModel as error:  # the deployment of that id still drains
            raise FleetInvalid(str(error), error.deployment) from error
        self._catalog.replace(fleet.models, fleet.deployments)
        self._upstreams.refresh()
        before, self.fleet = self.fleet, fleet
        _tell(before, fleet)

    def refuse(self, refused: Mapping[str, str]) -> None:
        """These are listed as ready, and are not served; by name, with the reason."""
        self.refused = refused

    def said_down(self, deployments: Collection[str]) -> None:
        """Whoever watches these deployments has found them down, and no others."""
        down = set(deployments)
        for name in sorted(self._down - down):
            self._guard.set_health(name, healthy=True)
        for name in sorted(down):
            if name not in self._down:
                log.warning("deployment %s is said to be down", name)
            self._guard.set_health(name, healthy=False, down=True)
        self._down = down

    def look_again(self) -> None:
        """Take what is followed over at the next look, whether or not it seems to have changed."""
        log.info("the fleet is read again")
        self._look_again = True

    async def follow(
        self,
        fleet: Fleet,
        editor: FleetEditor,
        launcher: Launcher | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """Take over every change of `editor`, for ever; `fleet` is served already.

        A bad one leaves the fleet as it is.
        """
        if self._editor is None:  # else it is started again, and may serve a later fleet
            self.fleet = fleet
        self._editor, self._launcher = editor, launcher
        with contextlib.suppress(FleetInvalid):  # it was right a moment ago: the next look says so
            self.overrides = await asyncio.to_thread(editor.overrides)
        while True:
            await asyncio.sleep(poll_seconds)
            async with self._one_at_a_time:
                if self._look_again or await asyncio.to_thread(editor.changed):
                    await self._reload(editor)
                if launcher is not None:
                    await launcher.stop_all_but(self._in_use())

    async def edit(
        self, change: Callable[[FleetEditor], None], require: Callable[[], None] = lambda: None
    ) -> None:
        """Change the fleet and serve it. Raises FleetInvalid, and then nothing has changed.

        `require` raises whatever forbids the change; no other change comes between.
        """
        editor = self._editor
        if editor is None:
            raise FleetInvalid(
                "This gateway has the one upstream of its command line: start it with --config."
            )
        async with self._one_at_a_time:
            require()
            await asyncio.to_thread(change, editor)
            try:
                await self._reload(editor)
            except Exception:  # a defect: such a change must not stay for the next start
                await asyncio.to_thread(editor.undo)
                raise
            if self.error is not None:
                error = self.error
                await asyncio.to_thread(editor.undo)
                await self._reload(editor)
                raise FleetInvalid(error)

    async def _reload(self, editor: FleetEditor) -> None:
        """Serve what is wanted now, or note why not."""
        self._look_again = True
        try:
            fleet = await asyncio.to_thread(editor.read)
            if self.fleet is not None:
                fleet.may_follow(self.fleet)
            if self._launcher is not None:
                fleet = await self._launcher.start(fleet)
            if self._publish_prices is not None:
                await self._publish_prices(fleet.models)
            overrides = await asyncio.to_thread(editor.overrides)
            self.replace(fleet)
            self.overrides = overrides
        except CannotStart as error:
            self.failed_reloads += 1
            self.error = str(error)
            log.error("the fleet stays as it is: %s", error)
        except Exception as error:  # a defect: who asks for the status learns of it
            self.failed_reloads += 1
            self.error = f"{type(error).__name__}: {error}"
            raise
        else:
            self.reloads += 1
            self.error = None
        self._look_again = False

    def _in_use(self) -> set[str]:
        """Deployments that are served, or still have requests."""
        served = self.fleet.deployments if self.fleet is not None else ()
        return {one.id for one in served} | {one.id for one in self._guard.status()}


def _tell(before: Fleet | None, after: Fleet) -> None:
    """Log what is new, changed and gone."""
    old = {one.id: one for one in before.deployments} if before is not None else {}
    new = {one.id: one for one in after.deployments}
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            log.info("deployment %s is gone; its requests go on", name)
        elif name not in old:
            log.info("deployment %s is new, at %s", name, new[name].base_url)
        elif new[name].draining and not old[name].draining:
            log.info("deployment %s drains", name)
        elif new[name] != old[name]:
            log.info("deployment %s has changed, at %s", name, new[name].base_url)
