"""Fold the outer scales of outer_scale.py into a checkpoint on disk.

The checkpoint is a folder of safetensors shards as published. Per layer, `kv_a_layernorm.weight`
is multiplied by 2**k and `kv_b_proj` by 2**-k: its `weight` where that is BF16, F16 or F32, else
the float32 scale that multiplies all of it (`weight_scale_inv` of DeepSeek's FP8 blocks,
`weight_scale_2` of NVFP4, `weight_scale` of per-tensor or per-channel FP8). A static scale of
its input, `input_scale` (a value is its code times the scale), grows as the latent does, by
2**k; anything else beside the projection and any scale of the cache itself are refused, since
what they mean after a fold is not known. Every other byte is copied.
Each shard is written to a temporary name and renamed when whole, then read back:
folded tensors must be exact multiples, all others identical. The files beside the shards follow
last, so that nothing can load a checkpoint that is cut short or damaged.

A folded model writes other latents than the unfolded one. The two are different revisions: KV
of one must never be given to the other. `kv_outer_scales.json` in the output tells them apart.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from prime_inference.kvcache.errors import CheckpointMalformed, ShapeMismatch
from prime_inference.kvcache.outer_scale import (
    FoldDtype,
    decode_weight,
    exponent_from_norm,
    scale_weight,
)
from prime_inference.kvcache.row import LATENT_DIMS
from prime_inference.kvcache.safetensors_file import SafetensorsFile, Tensor, flush_to_disk

NORM: Final = re.compile(r"^(?P<layer>.*\.\d+\.self_attn)\.kv_a_layernorm\.weight$")
# The scales of a quantized projection that are understood, and which multiplies all of it.
QUANTIZED_PARTS: Final = {
    frozenset({"weight_scale_inv"}): "weight_scale_inv",
    frozenset({"weight_scale", "weight_scale_2"}): "weight_scale_2",
    frozenset({"weight_scale"}): "weight_scale",
}
INPUT_SCALE: Final = "input_scale"
INDIFFERENT_PARTS: Final = frozenset({"weight", INPUT_SCALE, "bias"})  # a bias is added after
# Static scales of a quantized cache, as ModelOpt and compressed-tensors name them.
CACHE_SCALE: Final = re.compile(r"^(?P<layer>.*\.\d+\.self_attn)\.(\w+\.)?(k|v|kv|kv_cache)_scale$")
METADATA_KEY: Final = "prime_inference.kv_outer_scales"
RECORD: Final = "kv_outer_scales.json"
CONFIG: Final = "config.json"

Progress = Callable[[int], None]  # called with the bytes just written or verified


class _Index(msgspec.Struct):
    """`model.safetensors.index.json`: the shard of every tensor."""

    weight_map: dict[str, str]


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The shards, the exponent of every layer, and the exponent of every tensor to rewrite."""

    shards: tuple[SafetensorsFile, ...]
    layers: dict[str, int]
    tensors: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(one.nbytes for shard in self.shards for one in shard.tensors)


def plan_fold(folder: Path, exponents: Mapping[str, int] | None = None) -> FoldPlan:
    """Decide what to rewrite. `exponents` by layer prefix (`model.layers.0.self_attn`), from
    calibration; None takes the bound from each norm's weight.

    Raises `CheckpointMalformed` for a folder without MLA layers, a shard or tensor that its
    index names and it lacks, a layer without its projection or its exponent, a norm that bounds
    nothing, a scale whose meaning after a fold is not known, and a checkpoint that is folded
    already; `ScaleInexact` for a weight that a fold would round; `ShapeMismatch` for a latent
    of another size. So a plan that was made is one that `fold` can write.
    """
    shards = _open_shards(folder)
    found = _by_name(shards)
    _check_index(folder, {name: shard.path.name for name, (shard, _) in found.items()})
    layers: dict[str, int] = {}
    tensors: dict[str, int] = {}
    for name, (shard, one) in found.items():
        match = NORM.match(name)
        if not match:
            continue
        layer = match["layer"]
        _check_latent_dims(one, 0)
        if exponents is None:
            k = _bound_exponent(shard, one)
        elif layer in exponents:
            k = exponents[layer]
        else:
            raise CheckpointMalformed(f"no exponent was given for {layer}")
        layers[layer] = k
        tensors[name] = k
        tensors |= _projection_tensors(layer, k, found)
    if not layers:
        raise CheckpointMalformed(f"{folder.name} has no kv_a_layernorm.weight in a .safetensors")
    if exponents is not None and set(exponents) - set(layers):
        unknown = ", ".join(sorted(set(exponents) - set(layers)))
        raise CheckpointMalformed(f"the checkpoint has no layer {unknown}")
    _check_cache_scales(found, layers)
    for name, k in tensors.items():
        shard, one = found[name]
        for _ in _folded_chunks(shard, one, k):  # raises where one element would round
            pass
    return FoldPlan(shards, dict(sorted(layers.items(), key=_by_number)), tensors)


def fold(plan: FoldPlan, target: Path, progress: Progress = lambda _: None) -> None:
    """Write the folded checkpoint to the empty or new folder `target` and verify it.

    `progress` sees every byte twice: written, then verified. Raises FileExistsError,
    `ScaleInexact`, `CheckpointMalformed`. A shard that was not finished is removed.
    """
    if target.exists() and any(target.iterdir()):
        raise FileExistsError(
            f"{target} is not empty; if an earlier run was cut short there, remove it first"
        )
    target.mkdir(parents=True, exist_ok=True)
    record = msgspec.json.encode(plan.layers, order="sorted")
    for shard in plan.shards:
        _write_shard(shard, plan, target, record.decode(), progress)
    verify(plan, target, progress)
    (target / RECORD).write_bytes(msgspec.json.format(record, indent=1) + b"\n")
    # Without config.json nothing loads a folder: it comes last, as the disk may fill up here too.
    others = plan.shards[0].path.parent.iterdir()
    for other in sorted(others, key=lambda one: (one.name == CONFIG, one.name)):
        if other.is_file() and other.suffix != ".safetensors":
            shutil.copy2(other, target / other.name)


def verify(plan: FoldPlan, target: Path, progress: Progress = lambda _: None) -> None:
    """Compare `target` with its origin, byte for byte. Raises `CheckpointMalformed`."""
    for shard in plan.shards:
        copy = SafetensorsFile.open(target / shard.path.name)
        if [(t.name, t.dtype, t.shape) for t in copy.tensors] != [
            (t.name, t.dtype, t.shape) for t in shard.tensors
        ]:
            raise CheckpointMalformed(f"{copy.path.name}: other tensors than its origin")
        for before, after in zip(shard.tensors, copy.tensors, strict=True):
            k = plan.tensors.get(before.name, 0)
            for old, new in zip(shard.chunks(before), copy.chunks(after), strict=True):
                if not _is_multiple(old, new, before, k):
                    raise CheckpointMalformed(f"{copy.path.name}: {before.name} was damaged")
                progress(len(old))


def _write_shard(
    shard: SafetensorsFile, plan: FoldPlan, target: Path, record: str, progress: Progress
) -> None:
    part = target / f"{shard.path.name}.part"
    try:
        with part.open("wb") as file:
            shard.write_header(file, {**shard.metadata, METADATA_KEY: record})
            for one in shard.tensors:
                for piece in _folded_chunks(shard, one, plan.tensors.get(one.name, 0)):
                    file.write(piece)
                    progress(len(piece))
            flush_to_disk(file)
        part.rename(target / shard.path.name)
    finally:  # also where the disk is full or the run is interrupted
        part.unlink(missing_ok=True)


def _folded_chunks(shard: SafetensorsFile, one: Tensor, exponent: int) -> Iterator[bytes]:
    """CHUNK is a multiple of every element's size, so a piece holds whole elements."""
    for piece in shard.chunks(one):
        if exponent:
            yield scale_weight(piece, _fold_dtype(one), exponent, name=one.name)
        else:
            yield piece


def _is_multiple(old: bytes, new: bytes, one: Tensor, exponent: int) -> bool:
    if not exponent:
        return old == new
    before = decode_weight(old, _fold_dtype(one)).astype(np.float64)
    after = decode_weight(new, _fold_dtype(one)).astype(np.float64)
    return bool(np.array_equal(before * 2.0**exponent, after, equal_nan=True))


def _fold_dtype(one: Tensor) -> FoldDtype:
    if one.dtype in ("BF16", "F16", "F32"):
        return one.dtype  # type: ignore[return-value]  # narrowed by the line above
    raise CheckpointMalformed(f"{one.name} has dtype {one.dtype}, which cannot be folded")


def _open_shards(folder: Path) -> tuple[SafetensorsFile, ...]:
    if not folder.is_dir():
        raise CheckpointMalformed(f"{folder} is not a folder")
    shards = tuple(SafetensorsFile.open(path) for path in sorted(folder.glob("*.safetensors")))
    if any(METADATA_KEY in shard.metadata for shard in shards) or (folder / RECORD).exists():
        raise CheckpointMalformed(f"{folder.name} is folded already")
    return shards


def _by_name(shards: Iterable[SafetensorsFile]) -> dict[str, tuple[SafetensorsFile, Tensor]]:
    found: dict[str, tuple[SafetensorsFile, Tensor]] = {}
    for shard in shards:
        for one in shard.tensors:
            if one.name in found:
                where = f"{found[one.name][0].path.name} and {shard.path.name}"
                raise CheckpointMalformed(f"{one.name} stands in {where}; remove one of the files")
            found[one.name] = (shard, one)
    return found


def _check_index(folder: Path, found: Mapping[str, str]) -> None:
    """Raise for tensors that an index file puts elsewhere: a download that is not complete."""
    for path in folder.glob("*.safetensors.index.json"):
        try:
            index = msgspec.json.decode(path.read_bytes(), type=_Index)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CheckpointMalformed(f"{path.name} is not an index: {error}") from error
        for name, file in index.weight_map.items():
            if found.get(name) != file:
                raise CheckpointMalformed(f"{path.name} names {name} in {file}, which lacks it")


def _bound_exponent(shard: SafetensorsFile, norm: Tensor) -> int:
    try:
        return exponent_from_norm(decode_weight(shard.read(norm), _fold_dtype(norm)))
    except ValueError as error:
        raise CheckpointMalformed(f"{norm.name}: {error}") from error


def _check_latent_dims(one: Tensor, axis: int) -> None:
    if len(one.shape) != axis + 1 or one.shape[axis] != LATENT_DIMS:
        raise ShapeMismatch(one.name, "[N, 512]" if axis else "[512]", one.shape)


def _by_number(layer: tuple[str, int]) -> list[tuple[int, str]]:
    """Sorts `layers.10` behind `layers.9`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in layer[0].split(".")]


def _projection_tensors(
    layer: str, k: int, found: Mapping[str, tuple[SafetensorsFile, Tensor]]
) -> dict[str, int]:
    """The tensors beside a layer's projection that a fold by `k` rewrites, and their exponents."""
    prefix = f"{layer}.kv_b_proj."
    parts = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
    if "weight" not in parts:
        raise CheckpointMalformed(f"{prefix}weight is missing")
    folded = {f"{prefix}{INPUT_SCALE}": k} if INPUT_SCALE in parts else {}
    for name in folded:
        _fold_dtype(found[name][1])
    scales = frozenset(parts - INDIFFERENT_PARTS)
    weight = found[f"{prefix}weight"][1]
    if weight.dtype in ("BF16", "F16", "F32"):
        _check_latent_dims(weight, 1)
        if scales:
            raise CheckpointMalformed(
                f"{prefix}{min(scales)} stands beside a weight that is not quantized; what it "
                "means after a fold is not known"
            )
        return folded | {f"{prefix}weight": -k}
    if not scales:
        raise CheckpointMalformed(f"{prefix}weight is quantized and has no scale to fold")
    if scales not in QUANTIZED_PARTS:
        raise CheckpointMalformed(
            f"{prefix}weight is quantized with {', '.join(sorted(scales))}; what that means "
            "after a fold is not known"
        )
    scale = prefix + QUANTIZED_PARTS[scales]
    _fold_dtype(found[scale][1])
    return folded | {scale: -k}


def _check_cache_scales(names: Iterable[str], layers: Mapping[str, int]) -> None:
    """Raise for a static scale of the cache: it was measured on latents before the fold."""
    for name in names:
        match = CACHE_SCALE.match(name)
        if match and match["layer"] in layers:
            raise CheckpointMalformed(
                f"{name} is a scale of the cache, which a fold would make wrong; fold a "
                "checkpoint without it"
            )
