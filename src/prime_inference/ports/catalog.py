"""Which models there are and where they are served."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from prime_inference.domain.models import Deployment, Model


class Catalog(Protocol):
    """Look-ups from memory; changes arrive by replacing what is held."""

    def models(self) -> Sequence[Model]:
        """Every model, in the order they are shown."""
        ...

    def find(self, model_id: str) -> Model | None:
        """The model of that id, or None."""
        ...

    def deployments(self, model_id: str) -> Sequence[Deployment]:
        """Where that model is served; empty when it is unknown."""
        ...


class ChangingCatalog(Catalog, Protocol):
    """A catalogue whose content can be replaced while it is used."""

    def replace(self, models: Iterable[Model], deployments: Iterable[Deployment]) -> None:
        """Hold these from now on. Raises ValueError, and then keeps what it holds."""
        ...
