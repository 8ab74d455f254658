"""A catalogue held in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prime_inference.domain.models import Deployment, Model


class MemoryCatalog:
    """Implements `ports.catalog.ChangingCatalog`.

    Raises ValueError when a deployment serves a model that is not there, or two have one id.
    """

    def __init__(self, models: Iterable[Model], deployments: Iterable[Deployment]) -> None:
        self.replace(models, deployments)

    def replace(self, models: Iterable[Model], deployments: Iterable[Deployment]) -> None:
        by_id = {model.id: model for model in models}
        by_model: dict[str, list[Deployment]] = {name: [] for name in by_id}
        seen: set[str] = set()
        for deployment in deployments:
            if deployment.model not in by_id:
                raise ValueError(f"{deployment.id} serves an unknown model: {deployment.model}")
            if deployment.id in seen:
                raise ValueError(f"two deployments are named {deployment.id}")
            seen.add(deployment.id)
            by_model[deployment.model].append(deployment)
        self._models = by_id
        self._deployments = by_model

    def models(self) -> Sequence[Model]:
        return list(self._models.values())

    def find(self, model_id: str) -> Model | None:
        return self._models.get(model_id)

    def deployments(self, model_id: str) -> Sequence[Deployment]:
        return self._deployments.get(model_id, [])
