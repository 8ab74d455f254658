"""How one replica of a model is spread over GPUs, and what each of them holds.

    TPn    attention and experts are cut into n slices
    TEPn   attention is cut into n slices, experts are dealt out
    DEPn   attention is whole on each of n GPUs, which serve requests of their own; experts
           are dealt out

A latent cache cannot be cut by heads: under TP and TEP every GPU keeps the same rows, under
DEP each keeps those of its own requests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, Self, cast

from prime_inference.fleet.architecture import Architecture
from prime_inference.fleet.formats import (
    WEIGHT_BYTES,
    KvFormat,
    WeightFormat,
    index_bytes,
    kv_bytes_per_token,
)
from prime_inference.fleet.parameters import count

Kind = Literal["TP", "TEP", "DEP"]

PATTERN = re.compile(r"(TP|TEP|DEP)([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Parallelism:
    """A kind and the number of GPUs of one replica."""

    kind: Kind
    gpus: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """`DEP8` and the like. Raises ValueError."""
        found = PATTERN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is none of TPn, TEPn, DEPn")
        return cls(cast(Kind, found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.kind}{self.gpus}"

    @property
    def tensor(self) -> int:
        """GPUs that work on the same token."""
        return 1 if self.kind == "DEP" else self.gpus

    @property
    def data(self) -> int:
        """Groups that serve requests of their own, each with its own cache."""
        return self.gpus if self.kind == "DEP" else 1

    @property
    def experts_dealt_out(self) -> bool:
        return self.kind != "TP"


def weight_bytes(
    model: Architecture, parallel: Parallelism, *, routed: WeightFormat, other: WeightFormat
) -> int:
    """Weights on one GPU. What cannot be cut by heads (latent projections, index keys) is small
    and counted as cut."""
    counted = count(model)
    experts = counted.routed * WEIGHT_BYTES[routed] / parallel.gpus
    return round(experts + counted.unrouted * WEIGHT_BYTES[other] / parallel.tensor)


def gpu_kv_bytes(model: Architecture, parallel: Parallelism, kv: KvFormat) -> int:
    """What one token costs on each GPU that keeps it."""
    whole = kv_bytes_per_token(model, kv)
    if model.latent is not None:
        return whole
    heads = max(1, model.kv_heads // parallel.tensor)  # fewer heads than GPUs: they are copied
    return whole * heads // model.kv_heads + index_bytes(model)
