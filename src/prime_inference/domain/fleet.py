"""The fleet: every model and deployment that gateways serve, as one immutable value."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from prime_inference.domain.errors import CannotStart
from prime_inference.domain.models import Deployment, Model
from prime_inference.domain.suggestions import did_you_mean

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")  # it stands in logs, labels and paths
ID_RULE = "Letters, digits, dots, colons, dashes and underscores, at most 128."

MOST_NAME = 200  # characters: names stand in logs, labels and command lines

MOST_SLOTS = 1_000_000
"""Of a deployment: far more than sockets to one address, and sums of it stay exact."""

MOST_COUNT = 2**31 - 1  # engines count tokens and processes in 32 bits

SlotCount = Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
Count = Annotated[int, Meta(ge=1, le=MOST_COUNT)]


class FleetInvalid(CannotStart):
    """A fleet that cannot be served; the message names the place and the reason.

    `deployment` is the one without which it might be; empty where that is not known.
    """

    def __init__(self, message: str, deployment: str = "") -> None:
        super().__init__(message)
        self.deployment = deployment


def why_no_name(text: str) -> str | None:
    """Why `text` cannot name a model, a revision or a place; None if it can.

    Names are shown to people and stand in lines of logs and scripts: on one line, as they are.
    """
    if not text.strip():
        return "is empty"
    if len(text) > MOST_NAME:
        return f"is longer than {MOST_NAME} characters"
    if not text.isprintable() or text != text.strip():
        return "has characters that are not printed, or spaces around it"
    if text.startswith("-"):
        return "begins like a flag of a command line"
    return None


@dataclass(frozen=True, slots=True)
class Launch:
    """An engine that `serve` runs itself, as a child process on this machine.

    `pace_ms` and `first_token_ms` are the mock engine's, `model_file` is llama.cpp's; None is
    the default model, which is fetched once.
    """

    engine: Literal["mock", "llama.cpp"]
    model_file: Path | None = None
    pace_ms: float = 0.0
    first_token_ms: float = 0.0


Change = Literal["added", "moved", "drained", "resumed", "removed"]


@dataclass(frozen=True, slots=True)
class Override:
    """What an operator has changed of a deployment, over the fleet file.

    `values` are those of the keys that are other than the file's.
    """

    deployment: str
    change: Change
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is to be served. A deployment in `launches` has no base URL before it runs.

    Raises FleetInvalid if it contradicts itself.
    """

    models: tuple[Model, ...]
    deployments: tuple[Deployment, ...]
    datacenters: tuple[str, ...]
    launches: Mapping[str, Launch] = field(default_factory=dict)  # by deployment

    def __post_init__(self) -> None:
        models = [model.id for model in self.models]
        _unique("models", models)
        _unique("datacenters", self.datacenters)
        _unique("deployments", [deployment.id for deployment in self.deployments])
        if not models:
            raise FleetInvalid("There are no models.")
        known, places = frozenset(models), frozenset(self.datacenters)
        for deployment in self.deployments:
            if not ID.fullmatch(deployment.id):
                raise FleetInvalid(f"{deployment.id[:80]!r} cannot be a deployment's id. {ID_RULE}")
            if not 1 <= deployment.slots <= MOST_SLOTS:
                raise FleetInvalid(f"{deployment.id}: slots are 1 to {MOST_SLOTS:,}.")
            _known(deployment.id, "model", deployment.model, known)
            _known(deployment.id, "datacenter", deployment.datacenter, places)
        for model in self.models:
            _named("model's id", model.id)
            _named("revision", model.revision)

    def may_follow(self, before: Fleet) -> None:
        """Raises FleetInvalid if it cannot replace `before` in a gateway that runs."""
        served = {deployment.id: deployment.model for deployment in before.deployments}
        for deployment in self.deployments:
            model = served.get(deployment.id, deployment.model)
            if model != deployment.model:
                raise FleetInvalid(
                    f"{deployment.id} serves {model}: another model needs another deployment id."
                )


def _unique(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FleetInvalid(f"Two {kind} are named {name}.")
        seen.add(name)


def _named(kind: str, name: str) -> None:
    if reason := why_no_name(name):
        raise FleetInvalid(f"{name[:80]!r} cannot be a {kind}: it {reason}.")


def _known(deployment: str, kind: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise FleetInvalid(
            f"{deployment} names a {kind} that is not there: {name}."
            f"{did_you_mean(name, sorted(names))}"
        )
