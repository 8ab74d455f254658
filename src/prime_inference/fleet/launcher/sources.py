"""Model folders for engines that are told a folder instead of a repository."""

from __future__ import annotations

from pathlib import Path

from prime_inference.fleet.byte_model import write_byte_model
from prime_inference.fleet.byte_weights import write_byte_weights
from prime_inference.fleet.errors import SpecMalformed
from prime_inference.fleet.spec import Spec


def model_source(spec: Spec, folder: Path, base: Path) -> str:
    """What the engine is told to load; made in `folder` where it must be made.

    A path is taken from `base`, the folder of the fleet's file. Raises SpecMalformed, OSError.
    """
    source = spec.model.source
    if source == "bytes" and spec.engine != "llama.cpp":
        made = write_byte_model(folder / "bytes", spec.model.context_tokens)
        if spec.engine == "vllm":
            write_byte_weights(made)
        return str(made)
    require_source(spec, base)
    return str((base / source).absolute()) if source.startswith((".", "/")) else source


def require_source(spec: Spec, base: Path) -> None:
    """Raises SpecMalformed where the model is a path and nothing is there."""
    source = spec.model.source  # else a name that the engine knows
    if source.startswith((".", "/")) and not (path := (base / source).absolute()).exists():
        raise SpecMalformed(f"{spec.name}: model.source {source!r}: there is no {path}.")
