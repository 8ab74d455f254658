"""What an operator has changed over the fleet file while a gateway ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from prime_inference.domain.fleet import FleetInvalid, Override


class FleetChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Laid over the file's tables before they are read; whatever of it fits nothing is idle."""

    deployments: dict[str, dict[str, Any]] = {}  # in place of the file's of that id, or new
    draining: dict[str, bool] = {}
    removed: frozenset[str] = frozenset()

    @classmethod
    def load(cls, path: Path) -> FleetChanges:
        """Raises FleetInvalid for a file that is damaged."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise FleetInvalid(
                f"{path}: it cannot be read ({error}). Mend it, or move it away to go by the"
                " fleet file alone."
            ) from error

    def save(self, path: Path) -> None:
        """Replace the file in one step. Raises FleetInvalid."""
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(self))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except OSError as error:
            raise FleetInvalid(f"{path} cannot be written: {error.strerror}") from error

    def over(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of the file with these changes; what is malformed is left for its reader."""
        listed = values.get("deployments")
        if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
            return dict(values)
        new = dict(self.deployments)
        entries = [new.pop(str(one.get("id")), one) for one in listed] + list(new.values())
        kept = [one for one in entries if str(one.get("id")) not in self.removed]
        return {**values, "deployments": [self._drained(one) for one in kept]}

    def _drained(self, entry: dict[str, Any]) -> dict[str, Any]:
        draining = self.draining.get(str(entry.get("id")))
        return entry if draining is None else {**entry, "draining": draining}

    def overrides(self, values: Mapping[str, Any]) -> Iterator[Override]:
        """What of it changes the tables of the file, by deployment; the rest is idle."""
        in_file = by_id(values)
        for name in sorted({*self.deployments, *self.draining, *self.removed}):
            was, now = in_file.get(name), self.deployments.get(name, in_file.get(name))
            if name in self.removed:
                if was is not None:
                    yield Override(name, "removed")
                continue
            if now is None:
                continue
            if was is None:
                yield Override(name, "added", {key: now[key] for key in now if key != "id"})
            elif changed := {
                key: now[key] for key in now if key != "draining" and now[key] != was.get(key)
            }:
                yield Override(name, "moved", changed)
            drained = bool((was or {}).get("draining", False))
            draining = bool(self._drained(now).get("draining", False))
            if draining is not drained:
                yield Override(name, "drained" if draining else "resumed")

    # --- the next changes ---

    def with_deployment(self, entry: Mapping[str, Any]) -> FleetChanges:
        """`entry` is added, or takes the place of the one of its id."""
        name = str(entry.get("id"))
        draining = {key: value for key, value in self.draining.items() if key != name}
        return FleetChanges(
            {**self.deployments, name: dict(entry)}, draining, self.removed - {name}
        )

    def with_draining(self, name: str, draining: bool) -> FleetChanges:
        return FleetChanges(self.deployments, {**self.draining, name: draining}, self.removed)

    def without_draining(self, name: str) -> FleetChanges:
        """The file says whether the deployment drains."""
        draining = {key: value for key, value in self.draining.items() if key != name}
        return FleetChanges(self.deployments, draining, self.removed)

    def without(self, name: str) -> FleetChanges:
        """The deployment is removed."""
        deployments = {key: value for key, value in self.deployments.items() if key != name}
        draining = {key: value for key, value in self.draining.items() if key != name}
        return FleetChanges(deployments, draining, self.removed | {name})

    def fitting(self, values: Mapping[str, Any]) -> FleetChanges:
        """Without what is of deployments that neither the file nor these changes have."""
        in_file = by_id(values).keys()
        known = in_file | self.deployments.keys()
        draining = {name: value for name, value in self.draining.items() if name in known}
        return FleetChanges(self.deployments, draining, self.removed & in_file)


def by_id(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The tables of deployments that can be named; what is malformed is left for its reader."""
    listed = values.get("deployments")
    if not isinstance(listed, list):
        return {}
    return {str(one["id"]): one for one in listed if isinstance(one, dict) and "id" in one}
