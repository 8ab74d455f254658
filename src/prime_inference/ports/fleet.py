"""Where a gateway learns which fleet it serves, and who runs engines for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from prime_inference.domain.fleet import Fleet, Override


class FleetSource(Protocol):
    """A fleet that may change while gateways run."""

    def read(self) -> Fleet:
        """The fleet as it is now. Raises FleetInvalid."""
        ...

    def changed(self) -> bool:
        """Whether it may be another than the one that was read last; asked again and again."""
        ...


class FleetEditor(FleetSource, Protocol):
    """A fleet that an operator changes. Every edit raises FleetInvalid, and then is not made."""

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add a deployment, given by the keys of the fleet file."""
        ...

    def drain(self, deployment: str, *, draining: bool) -> None:
        """Offer it no more requests, or offer it requests again."""
        ...

    def move(self, deployment: str, place: Mapping[str, Any]) -> None:
        """Give it another `base_url`, `datacenter` or number of `slots`."""
        ...

    def remove(self, deployment: str) -> None:
        """Take it out; its requests go on."""
        ...

    def overrides(self) -> Sequence[Override]:
        """The edits that are in force, by deployment. Raises FleetInvalid."""
        ...

    def undo(self) -> None:
        """Take the last edit back."""
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
