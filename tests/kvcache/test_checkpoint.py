from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from prime_inference.kvcache.checkpoint import fold, plan_fold, verify
from prime_inference.kvcache.errors import CheckpointMalformed, ScaleInexact, ShapeMismatch
from prime_inference.kvcache.outer_scale import decode_weight
from prime_inference.kvcache.safetensors_file import SafetensorsFile

ITEM = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> None:
    header, at = {}, 0
    for name, (dtype, shape, raw) in tensors.items():
        assert len(raw) == ITEM[dtype] * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in tensors.values())
    )


def bf16(shape: list[int], seed: int, size: float = 1.0) -> tuple[str, list[int], bytes]:
    values = (np.random.default_rng(seed).standard_normal(shape) * size).astype(np.float32)
    return "BF16", shape, (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def layer(index: int) -> str:
    return f"model.layers.{index}.self_attn"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Two shards; the second layer's norm and projection lie in different ones, its projection
    in FP8 with block scales."""
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(
        folder / "model-00001-of-00002.safetensors",
        {
            "model.embed_tokens.weight": bf16([10, 8], 1),
            f"{layer(0)}.kv_a_layernorm.weight": bf16([512], 2, 0.004),
            f"{layer(0)}.kv_b_proj.weight": bf16([24, 512], 3, 0.1),
            f"{layer(1)}.kv_a_layernorm.weight": bf16([512], 4, 1.3),
        },
    )
    codes = np.random.default_rng(5).integers(0, 126, 24 * 512).astype(np.uint8).tobytes()
    write_safetensors(
        folder / "model-00002-of-00002.safetensors",
        {
            f"{layer(1)}.kv_b_proj.weight": ("F8_E4M3", [24, 512], codes),
            f"{layer(1)}.kv_b_proj.weight_scale_inv": (
                "F32",
                [1, 4],
                np.array([0.1, 0.2, 0.3, 0.4], "<f4").tobytes(),
            ),
            "lm_head.weight": bf16([10, 8], 6),
        },
    )
    (folder / "config.json").write_text("{}")
    return folder


def tensors(folder: Path) -> dict[str, tuple[str, bytes]]:
    return {
        one.name: (one.dtype, file.read(one))
        for path in sorted(folder.glob("*.safetensors"))
        for file in [SafetensorsFile.open(path)]
        for one in file.tensors
    }


def names(path: Path) -> list[str]:
    return [one.name for one in SafetensorsFile.open(path).tensors]


def test_only_norms_and_projections_change_and_by_inverse_powers_of_two(
    checkpoint: Path, tmp_path: Path
) -> None:
    plan = plan_fold(checkpoint)
    seen: list[int] = []
    fold(plan, tmp_path / "out", seen.append)
    assert sum(seen) == 2 * plan.nbytes
    assert plan.layers[layer(0)] > plan.layers[layer(1)]
    before, after = tensors(checkpoint), tensors(tmp_path / "out")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {
        f"{layer(0)}.kv_a_layernorm.weight",
        f"{layer(0)}.kv_b_proj.weight",
        f"{layer(1)}.kv_a_layernorm.weight",
        f"{layer(1)}.kv_b_proj.weight_scale_inv",
    }
    for name in changed:
        k = plan.layers[name.split(".kv_")[0]] * (1 if "layernorm" in name else -1)
        dtype, raw = before[name]
        want = decode_weight(raw, dtype).astype(np.float64) * 2.0**k  # type: ignore[arg-type]
        got = decode_weight(after[name][1], dtype).astype(np.float64)  # type: ignore[arg-type]
        np.testing.assert_array_equal(got, want)
    assert (tmp_path / "out" / "config.json").read_text() == "{}"
    record = json.loads((tmp_path / "out" / "kv_outer_scales.json").read_text())
    assert record == plan.layers


def absorbed_outputs(
    norm: npt.NDArray[np.float32],
    projection: npt.NDArray[np.float32],
    normed: npt.NDArray[np.float64],
    query: npt.NDArray[np.float64],
    nope_dims: int,
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Scores [T] and values [T, v] of one head in the absorbed form, in float64.

    `projection` [nope_dims + v, 512] is a head's part of kv_b_proj, `normed` [T, 512] the
    normalized input before the norm's weight, `query` [nope_dims]. A fold by a power of two
    leaves both outputs bitwise as they were.
    """
    latent = normed * norm.astype(np.float64)
    absorbed_query = query @ projection[:nope_dims].astype(np.float64)
    return latent @ absorbed_query, latent @ projection[nope_dims:].astype(np.float64).T


def test_the_absorbed_path_of_a_folded_layer_gives_the_same_bits(
    checkpoint: Path, tmp_path: Path
) -> None:
    fold(plan_fold(checkpoint), tmp_path / "out")
    rng = np.random.default_rng(0)
    normed, query = rng.standard_normal((50, 512)), rng.standard_normal(16)
    outputs = []
    for folder in (checkpoint, tmp_path / "out"):
        held = tensors(folder)
        norm = decode_weight(held[f"{layer(0)}.kv_a_layernorm.weight"][1], "BF16")
        projection = decode_weight(held[f"{layer(0)}.kv_b_proj.weight"][1], "BF16")
        outputs.append(absorbed_outputs(norm, projection.reshape(24, 512), normed, query, 16))
    np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
    np.testing.assert_array_equal(outputs[0][1], outputs[1][1])


def test_exponents_of_a_calibration_are_taken_as_given(checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_fold(checkpoint, {layer(0): 9, layer(1): 0})
    fold(plan, tmp_path / "out")
    before, after = tensors(checkpoint), tensors(tmp_path / "out")
    assert before[f"{layer(1)}.kv_a_layernorm.weight"] == after[f"{layer(1)}.kv_a_layernorm.weight"]
    assert plan.tensors[f"{layer(0)}.kv_b_proj.weight"] == -9


def test_a_checkpoint_is_not_folded_twice(checkpoint: Path, tmp_path: Path) -> None:
    fold(plan_fold(checkpoint), tmp_path / "out")
    with pytest.raises(CheckpointMalformed, match="folded already"):
        plan_fold(tmp_path / "out")
    (tmp_path / "out" / "kv_outer_scales.json").unlink()
    with pytest.raises(CheckpointMalformed, match="folded already"):
        plan_fold(tmp_path / "out")


def test_a_checkpoint_that_lacks_a_shard_of_its_index_is_refused(checkpoint: Path) -> None:
    where = {name: path.name for path in checkpoint.glob("*.safetensors") for name in names(path)}
    index = checkpoint / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    plan_fold(checkpoint)
    (checkpoint / "model-00002-of-00002.safetensors").rename(checkpoint / "elsewhere")
    with pytest.raises(CheckpointMalformed, match=r"00002-of-00002\.safetensors, which lacks it"):
        plan_fold(checkpoint)
    index.write_text("[]")
    with pytest.raises(CheckpointMalformed, match="not an index"):
        plan_fold(checkpoint)


def test_nothing_can_load_a_fold_that_stopped_before_it_was_verified(
    checkpoint: Path, tmp_path: Path
) -> None:
    class Stopped(Exception):
        pass

    plan, done = plan_fold(checkpoint), 0

    def stop_while_verifying(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if done > plan.nbytes:
            raise Stopped

    with pytest.raises(Stopped):
        fold(plan, tmp_path / "out", stop_while_verifying)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {shard.path.name for shard in plan.shards}
    with pytest.raises(FileExistsError, match="remove it first"):
        fold(plan, tmp_path / "out")


@pytest.mark.parametrize("broken", ["zero norm", "short norm", "short projection"])
def test_a_layer_whose_weights_cannot_be_ours_is_refused_by_name(
    tmp_path: Path, broken: str
) -> None:
    norm = bf16([256 if broken == "short norm" else 512], 2, 0.0 if broken == "zero norm" else 1.0)
    projection = bf16([24, 256 if broken == "short projection" else 512], 3)
    write_safetensors(
        tmp_path / "model.safetensors",
        {
            f"{layer(0)}.kv_a_layernorm.weight": norm,
            f"{layer(0)}.kv_b_proj.weight": projection,
        },
    )
    for exponents in [None] if broken == "zero norm" else [None, {layer(0): 1}]:
        with pytest.raises((CheckpointMalformed, ShapeMismatch), match=layer(0)):
            plan_fold(tmp_path, exponents)


def test_layers_are_listed_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 2):
        held = {
            f"{layer(number)}.kv_a_layernorm.weight": bf16([512], number),
            f"{layer(number)}.kv_b_proj.weight": bf16([24, 512], number),
        }
        write_safetensors(tmp_path / f"{20 - number}.safetensors", held)
    assert list(plan_fold(tmp_path).layers) == [layer(2), layer(9), layer(10)]


def test_verification_finds_one_flipped_bit(checkpoint: Path, tmp_path: Path) -> None:
    plan = plan_fold(checkpoint)
    fold(plan, tmp_path / "out")
    shard = tmp_path / "out" / "model-00001-of-00002.safetensors"
    for at in (-1, -1500, -20000):
        whole = bytearray(shard.read_bytes())
        whole[at] ^= 1
        shard.write_bytes(whole)
        with pytest.raises(CheckpointMalformed):
            verify(plan, tmp_path / "out")
        whole[at] ^= 1
        shard.write_bytes(whole)
    verify(plan, tmp_path / "out")


def test_an_occupied_target_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(FileExistsError):
        fold(plan_fold(checkpoint), tmp_path / "out")


def test_a_weight_that_cannot_be_scaled_exactly_stops_the_fold(
    checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(ScaleInexact):
        fold(plan_fold(checkpoint, {layer(0): 140, layer(1): 0}), tmp_path / "out")


def test_a_folder_without_mla_layers_is_refused(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", {"w": bf16([2, 2], 0)})
    with pytest.raises(CheckpointMalformed, match="kv_a_layernorm"):
        plan_fold(tmp_path)


@pytest.mark.parametrize("given", [{layer(0): 1}, {layer(0): 1, layer(1): 1, layer(7): 1}])
def test_exponents_must_name_exactly_the_layers_of_the_checkpoint(checkpoint, given) -> None:
    with pytest.raises(CheckpointMalformed, match="layer"):
        plan_fold(checkpoint, given)


def test_files_that_are_not_what_their_header_says_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": bf16([2, 2], 0)})
    whole = path.read_bytes()
    for broken in (b"", whole[:5], whole[:-1], whole + b"x", b"\xff" * 8 + whole[8:]):
        path.write_bytes(broken)
        with pytest.raises(CheckpointMalformed):
            SafetensorsFile.open(path)


def quantized(folder: Path, parts: dict[str, tuple[str, list[int], bytes]]) -> None:
    codes = np.random.default_rng(5).integers(0, 126, 24 * 512).astype(np.uint8).tobytes()
    held = {
        f"{layer(0)}.kv_a_layernorm.weight": bf16([512], 2, 0.004),
        f"{layer(0)}.kv_b_proj.weight": ("F8_E4M3", [24, 512], codes),
    }
    held |= {f"{layer(0)}.{name}": value for name, value in parts.items()}
    write_safetensors(folder / "model.safetensors", held)


ONE_SCALE: tuple[str, list[int], bytes] = ("F32", [], np.float32(0.37).tobytes())


def test_a_static_activation_scale_grows_as_the_latent_does(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    scales = {"kv_b_proj.weight_scale": ONE_SCALE, "kv_b_proj.input_scale": ONE_SCALE}
    quantized(tmp_path / "in", scales)
    plan = plan_fold(tmp_path / "in")
    fold(plan, tmp_path / "out")
    after, k = tensors(tmp_path / "out"), plan.layers[layer(0)]
    assert k > 0
    for part, exponent in (("input_scale", k), ("weight_scale", -k)):
        got = np.frombuffer(after[f"{layer(0)}.kv_b_proj.{part}"][1], "<f4")
        assert got == np.float32(0.37) * np.float32(2.0**exponent)


@pytest.mark.parametrize(
    "parts",
    [
        {"kv_b_proj.weight_scale": ONE_SCALE, "kv_b_proj.input_global_scale": ONE_SCALE},
        {"kv_b_proj.weight_scale": ONE_SCALE, "kv_b_proj.weight_zero_point": ONE_SCALE},
        {"kv_b_proj.weight_scale_inv": ONE_SCALE, "kv_b_proj.weight_scale": ONE_SCALE},
        {"kv_b_proj.weight_scale": ONE_SCALE, "attn.k_scale": ONE_SCALE},
        {"kv_b_proj.weight_scale": ONE_SCALE, "kv_b_proj.input_scale": ("F8_E4M3", [1], b"8")},
        {},
    ],
)
def test_a_scale_whose_meaning_after_a_fold_is_not_known_is_refused(
    tmp_path: Path, parts: dict[str, tuple[str, list[int], bytes]]
) -> None:
    quantized(tmp_path, parts)
    with pytest.raises(CheckpointMalformed, match=layer(0)):
        plan_fold(tmp_path)


def test_a_plan_is_refused_for_what_the_fold_would_refuse(checkpoint: Path) -> None:
    with pytest.raises(ScaleInexact, match=layer(0)):
        plan_fold(checkpoint, {layer(0): 140, layer(1): 0})


def test_no_unfinished_shard_is_left(checkpoint: Path, tmp_path: Path) -> None:
    def stop(nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fold(plan_fold(checkpoint), tmp_path / "out", stop)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_header_whose_shapes_contradict_its_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(path, {"w": bf16([2, 2], 0)})
    path.write_bytes(path.read_bytes().replace(b"[2, 2]", b"[2, 3]"))
    with pytest.raises(CheckpointMalformed, match="w is BF16"):
        SafetensorsFile.open(path)


DEEP = "[" * 100_000 + "]" * 100_000
ENTRY = '{"w": {"dtype": "BF16", "shape": %s, "data_offsets": %s}}'


@pytest.mark.parametrize(
    "header",
    [
        *(ENTRY % (shape, "[0, 8]") for shape in ('["a", "b"]', "[null]", "[4.0]", "[-2, -2]")),
        *(ENTRY % ("[4]", offsets) for offsets in ("[0.0, 8.0]", '["0", "8"]', "[-8, 0]", "[0]")),
        ENTRY.replace("BF16", "?") % ('["a"]', "[0, 8]"),
        '{"__metadata__": {"a": 1}}',
        '{"__metadata__": {"a": ' + DEEP + "}}",
        '{"w": {"x": ' + DEEP + "}}",
        "[]",
    ],
    ids=lambda header: header[:70],
)
def test_a_header_of_other_types_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(CheckpointMalformed, match="unreadable header"):
        SafetensorsFile.open(path)


def test_a_pipe_among_the_shards_is_refused_and_not_waited_for(checkpoint: Path) -> None:
    os.mkfifo(checkpoint / "x.safetensors")
    with pytest.raises(CheckpointMalformed, match=r"x\.safetensors is not a file"):
        plan_fold(checkpoint)


def test_a_tensor_in_two_shards_is_refused(checkpoint: Path) -> None:
    shard = "model-00001-of-00002.safetensors"
    shutil.copy(checkpoint / shard, checkpoint / "again.safetensors")
    with pytest.raises(CheckpointMalformed, match=f"stands in again.safetensors and {shard}"):
        plan_fold(checkpoint)


def test_a_disk_that_fills_up_at_the_end_leaves_nothing_to_load(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "tokenizer.json").write_text("{}")
    copy = shutil.copy2

    def full(source: Path, target: Path) -> None:
        if source.name == "tokenizer.json":
            raise OSError(28, "No space left on device")
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left"):
        fold(plan_fold(checkpoint), tmp_path / "out")
    assert (tmp_path / "out" / "kv_outer_scales.json").exists()
    assert not (tmp_path / "out" / "config.json").exists()
