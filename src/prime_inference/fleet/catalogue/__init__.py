"""Specs and models that ship with the product, by name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from prime_inference.domain.suggestions import did_you_mean
from prime_inference.fleet.architecture import Architecture, parse_architecture, read_architecture
from prime_inference.fleet.check import require
from prime_inference.fleet.errors import SpecMalformed
from prime_inference.fleet.spec import Spec
from prime_inference.fleet.toml_file import read_toml, to_struct


def spec_names() -> list[str]:
    """Specs of the catalogue, sorted."""
    return _names("specs", ".toml")


def model_names() -> list[str]:
    """Models of the catalogue, sorted."""
    return _names("models", ".json")


Reading = Callable[[Path], None]
"""Called with each file before it is read, for who follows them."""


def find_spec(
    name: str,
    base: Path | None = None,
    changes: dict[str, Any] | None = None,
    *,
    reading: Reading = lambda _: None,
) -> Spec:
    """`read_spec`, checked. Raises SpecMalformed, SpecImpossible."""
    if name.endswith(".toml"):
        reading((base or Path()) / name)
    spec = read_spec(name, base, changes)
    architecture, folder = spec.model.architecture, folder_of(name, base)
    if architecture.endswith(".json"):
        reading((folder or Path()) / architecture)
    require(spec, find_model(architecture, folder))
    return spec


def read_spec(name: str, base: Path | None = None, changes: dict[str, Any] | None = None) -> Spec:
    """A spec by its name in the catalogue or its file, with `changes` laid over.

    A path is taken from `base`, the folder of the file that names it. Raises SpecMalformed.
    """
    if name.endswith(".toml"):
        values = read_toml((base or Path()) / name)
    elif name in spec_names():
        with resources.as_file(_folder("specs") / f"{name}.toml") as path:
            values = read_toml(path)
    else:
        known = spec_names()
        raise SpecMalformed(
            f"There is no spec {name!r} in the catalogue: it has {', '.join(known)}."
            f"{did_you_mean(name, known)} A file's name ends in .toml."
        )
    values = laid_over({"name": Path(name).name.removesuffix(".toml")} | values, changes or {})
    return to_struct(values, Spec, name)


def folder_of(name: str, base: Path | None) -> Path | None:
    """The folder that paths inside the spec `name` start from."""
    return ((base or Path()) / name).parent if name.endswith(".toml") else base


def find_model(name: str, base: Path | None = None) -> Architecture:
    """A model by its name in the catalogue or its config.json. Raises SpecMalformed."""
    if name.endswith(".json"):
        path = (base or Path()) / name
        return read_architecture(path, path.parent.name)
    if name not in model_names():
        known = model_names()
        raise SpecMalformed(
            f"There is no model {name!r} in the catalogue: it has {', '.join(known)}."
            f"{did_you_mean(name, known)}"
        )
    return parse_architecture((_folder("models") / f"{name}.json").read_bytes(), name)


def laid_over(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`values` with those of `changes` in their place, table by table."""
    result = dict(values)
    for key, value in changes.items():
        below = result.get(key)
        both = isinstance(below, dict) and isinstance(value, dict)
        result[key] = laid_over(below, value) if both else value  # type: ignore[arg-type]
    return result


def _names(folder: str, suffix: str) -> list[str]:
    files = (file.name for file in _folder(folder).iterdir())
    return sorted(name.removesuffix(suffix) for name in files if name.endswith(suffix))


def _folder(name: str) -> Traversable:
    return resources.files(__package__) / name
