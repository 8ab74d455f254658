"""A fleet in a TOML file (docs/fleet-file.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from prime_inference.adapters.files.fleet_changes import FleetChanges, by_id
from prime_inference.domain.fleet import Count, Fleet, FleetInvalid, Launch, Override, SlotCount
from prime_inference.domain.models import Deployment, EngineKind, HealthCheck, Model, Pricing
from prime_inference.domain.money import rate
from prime_inference.domain.suggestions import did_you_mean
from prime_inference.domain.toml import TomlRefused, read_toml, to_struct
from prime_inference.wire.http_client import Origin

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Milliseconds = Annotated[float, Meta(ge=0, le=3_600_000)]  # nobody waits an hour for a mock
Second = Annotated[int, Meta(ge=0, le=253_402_300_799)]  # since the epoch; the last of year 9999
Route = Literal["chat/completions", "completions", "embeddings"]

ROUTES: Mapping[EngineKind, frozenset[str]] = {
    "vllm": frozenset({"chat/completions", "completions"}),  # embeddings are a server of their own
    "openai": frozenset({"chat/completions"}),
    "llama.cpp": frozenset({"chat/completions", "completions", "embeddings"}),
}
"""What an engine serves unless the file says otherwise."""

HEALTH: Mapping[EngineKind, HealthCheck] = {
    "vllm": "vllm",
    "openai": "none",  # OpenAI's API has no such question
    "llama.cpp": "llama.cpp",
}
"""How to ask an engine whether it can serve, unless the file says otherwise."""


class PricingEntry(Struct, frozen=True):
    """US dollars per million tokens, as decimal text."""

    prompt: str = "0"
    completion: str = "0"
    cached_prompt: str | None = None  # None: as prompt


class ModelEntry(Struct, frozen=True):
    id: Name
    revision: Name
    context_tokens: Count
    max_output_tokens: Count | None = None  # None: as many as the context window holds
    name: str = ""
    created: Second = 0
    modalities: frozenset[Literal["text", "image"]] = frozenset({"text"})
    image_tokens: Count | None = None  # None: one image can fill the context
    pricing: PricingEntry = PricingEntry()


class DatacenterEntry(Struct, frozen=True):
    id: Name


class MockEntry(Struct, frozen=True):
    """How a mock engine that is started here takes its time."""

    pace_ms: Milliseconds = 0.0
    first_token_ms: Milliseconds = 0.0


class DeploymentEntry(Struct, frozen=True):
    """Without `base_url` it is started here: a mock engine or llama.cpp."""

    id: Name
    model: Name
    datacenter: Name
    engine: Literal["vllm", "openai", "llama.cpp", "mock"]
    slots: SlotCount
    base_url: str = ""
    upstream_model: str = ""  # empty: the model's id
    parameters: frozenset[str] | None = None  # None: those of the engine
    routes: frozenset[Route] | None = None  # None: those of the engine
    schema_alternatives: Count | None = None
    health: HealthCheck | None = None  # None: that of the engine
    draining: bool = False
    tokens_per_second: Count | None = None  # of output, with all slots in use
    model_file: str = ""  # GGUF, for a llama.cpp that is started here; beside this file
    mock: MockEntry = MockEntry()


class FleetEntries(Struct, frozen=True):
    """The file as it is written."""

    models: list[ModelEntry]
    datacenters: list[DatacenterEntry]
    deployments: list[DeploymentEntry]


class FleetFile:
    """Implements `ports.fleet.FleetEditor`.

    `parameters` are those that each kind of engine honours; `launching` says whether
    deployments without a base URL can be started. Edits are kept in `changes`, since the
    file is its author's.
    """

    def __init__(
        self,
        path: Path,
        parameters: Mapping[EngineKind, frozenset[str]],
        *,
        launching: bool,
        changes: Path,
    ) -> None:
        self._path = path
        self._changes_path = changes
        self._parameters = parameters
        self._launching = launching
        self._seen: tuple[int, ...] = ()
        self._looked_at: tuple[int, ...] = ()  # at the last look
        self._before = FleetChanges()  # the last edit; `undo` goes back to it

    def read(self) -> Fleet:
        self._seen = self._stamp()
        return self._read(FleetChanges.load(self._changes_path))

    def add(self, entry: Mapping[str, Any]) -> None:
        name = str(entry.get("id"))
        if name in self._names():
            raise FleetInvalid(f"There is a deployment {name} already.")
        self._change(lambda changes: changes.with_deployment(entry))

    def drain(self, deployment: str, *, draining: bool) -> None:
        self._require(deployment)
        in_file = by_id(self._values())
        if in_file.get(deployment, {}).get("draining", False) is draining:
            self._change(lambda changes: changes.without_draining(deployment))
        else:
            self._change(lambda changes: changes.with_draining(deployment, draining))

    def move(self, deployment: str, place: Mapping[str, Any]) -> None:
        entry = self._require(deployment)
        self._change(lambda changes: changes.with_deployment({**entry, **place}))

    def remove(self, deployment: str) -> None:
        self._require(deployment)
        self._change(lambda changes: changes.without(deployment))

    def overrides(self) -> Sequence[Override]:
        return list(FleetChanges.load(self._changes_path).overrides(self._values()))

    def undo(self) -> None:
        self._before.save(self._changes_path)

    def _names(self) -> dict[str, dict[str, Any]]:
        return by_id(FleetChanges.load(self._changes_path).over(self._values()))

    def _require(self, deployment: str) -> dict[str, Any]:
        entries = self._names()
        if deployment not in entries:
            raise FleetInvalid(
                f"There is no deployment {deployment}.{did_you_mean(deployment, entries)}"
            )
        return entries[deployment]

    def _change(self, change: Callable[[FleetChanges], FleetChanges]) -> None:
        before = FleetChanges.load(self._changes_path)
        after = change(before).fitting(self._values())
        self._read(after)
        after.save(self._changes_path)
        self._before = before

    def _read(self, changes: FleetChanges) -> Fleet:
        values = self._values()
        try:
            return self._fleet(self._entries(changes.over(values)))
        except FleetInvalid as error:
            raise self._invalid(str(error)) from error

    def _values(self) -> dict[str, Any]:
        try:
            return read_toml(self._path)
        except TomlRefused as error:
            raise self._invalid(str(error)) from error

    def changed(self) -> bool:
        """Only what two looks have found alike: the first may have met it half-written."""
        stamp = self._stamp()
        settled, self._looked_at = stamp == self._looked_at, stamp
        return settled and stamp != self._seen

    def _stamp(self) -> tuple[int, ...]:
        """What tells one content from another: editors replace files, and clocks are coarse."""
        try:
            status = self._path.stat()
        except OSError:  # it is being replaced, or gone: reading it says so
            return ()
        return status.st_mtime_ns, status.st_ino, status.st_size

    def _invalid(self, reason: str) -> FleetInvalid:
        return FleetInvalid(f"{self._path}: {reason.removesuffix('.')}.")

    @staticmethod
    def _entries(values: Mapping[str, Any]) -> FleetEntries:
        try:
            return to_struct(values, FleetEntries)
        except TomlRefused as error:
            raise FleetInvalid(str(error)) from error

    def _fleet(self, entries: FleetEntries) -> Fleet:
        launches = {}
        deployments = []
        for entry in entries.deployments:
            launch = None if entry.base_url else self._launch(entry)
            if launch is not None:
                launches[entry.id] = launch
            deployments.append(self._deployment(entry))
        return Fleet(
            models=tuple(_model(entry) for entry in entries.models),
            deployments=tuple(deployments),
            datacenters=tuple(entry.id for entry in entries.datacenters),
            launches=launches,
        )

    def _launch(self, entry: DeploymentEntry) -> Launch:
        if not self._launching:
            raise FleetInvalid(
                f"{entry.id} has no base_url: `serve` starts engines, `gateway` does not"
            )
        if entry.engine not in ("mock", "llama.cpp"):
            raise FleetInvalid(
                f"{entry.id} has no base_url: mock and llama.cpp are started here,"
                f" {entry.engine} is not"
            )
        if "\0" in entry.model_file:
            raise FleetInvalid(f"{entry.id}: model_file is no path")
        file = self._path.parent / entry.model_file if entry.model_file else None
        return Launch(entry.engine, file, entry.mock.pace_ms, entry.mock.first_token_ms)

    def _deployment(self, entry: DeploymentEntry) -> Deployment:
        engine: EngineKind = "vllm" if entry.engine == "mock" else entry.engine
        if entry.base_url:
            _check_url(entry)
        known = self._parameters[engine]
        for name in (entry.parameters or frozenset()) - frozenset().union(
            *self._parameters.values()
        ):
            raise FleetInvalid(
                f"{entry.id} has a parameter that is not known: {name}.{did_you_mean(name, known)}"
            )
        deployment = Deployment(
            id=entry.id,
            model=entry.model,
            datacenter=entry.datacenter,
            base_url=entry.base_url.rstrip("/"),
            engine=engine,
            slots=entry.slots,
            upstream_model=entry.upstream_model or entry.model,
            parameters=known if entry.parameters is None else entry.parameters,
            routes=ROUTES[engine] if entry.routes is None else frozenset(entry.routes),
            health=entry.health or HEALTH[engine],
            draining=entry.draining,
            tokens_per_second=entry.tokens_per_second,
        )
        if entry.schema_alternatives is None:
            return deployment
        return replace(deployment, schema_alternatives=entry.schema_alternatives)


def _check_url(entry: DeploymentEntry) -> None:
    try:
        Origin.parse(entry.base_url)
    except ValueError as error:
        raise FleetInvalid(f"{entry.id}: base_url is {error}") from error


def _model(entry: ModelEntry) -> Model:
    told = entry.pricing
    cached = told.prompt if told.cached_prompt is None else told.cached_prompt
    prices = Pricing(told.prompt, told.completion, cached)
    for key in ("prompt", "completion", "cached_prompt"):
        try:
            rate(getattr(prices, key))
        except ValueError as error:
            raise FleetInvalid(f"{entry.id}: pricing.{key} is no price: {error}") from error
    return Model(
        id=entry.id,
        revision=entry.revision,
        created=entry.created,
        context_tokens=entry.context_tokens,
        max_output_tokens=entry.max_output_tokens or entry.context_tokens,
        name=entry.name,
        modalities=frozenset(entry.modalities),
        pricing=prices,
        image_tokens=entry.image_tokens,
    )
