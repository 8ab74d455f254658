"""Where a gateway learns which fleet it serves, and who runs engines for it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from prime_inference.domain.fleet import Fleet


class FleetSource(Protocol):
    """A fleet that may change while gateways run."""

    def read(self) -> Fleet:
        """The fleet as it is now. Raises FleetInvalid."""
        ...

    def changed(self) -> bool:
        """Whether it may be another than the one that was read last."""
        ...


class Launcher(Protocol):
    """Runs engines of a fleet on this machine."""

    async def start(self, fleet: Fleet) -> Fleet:
        """Start what does not run yet; the same fleet with the base URL of each deployment.

        Raises CannotStart.
        """
        ...

    async def stop_all_but(self, deployments: Collection[str]) -> None:
        """Stop the engines of every other deployment."""
        ...
