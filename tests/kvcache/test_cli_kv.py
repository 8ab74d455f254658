from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from prime_inference.cli.main import app
from prime_inference.kvcache.safetensors_file import SafetensorsFile
from tests.kvcache.test_checkpoint import bf16, layer, write_safetensors

Prime = Callable[..., Result]


@pytest.fixture
def prime() -> Prime:
    return lambda *args: CliRunner().invoke(app, ["inference", *map(str, args)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    write_safetensors(
        folder / "model.safetensors",
        {
            f"{layer(0)}.kv_a_layernorm.weight": bf16([512], 2, 0.004),
            f"{layer(0)}.kv_b_proj.weight": bf16([24, 512], 3, 0.1),
        },
    )
    return folder


def test_folding_writes_a_verified_checkpoint_and_says_each_exponent(
    prime: Prime, model: Path, tmp_path: Path
) -> None:
    result = prime("kv", "fold-scales", model, tmp_path / "out", "-o", "json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["written"]
    assert report["layers"][layer(0)] > 0
    assert "(100 %)" in result.stderr
    folded = SafetensorsFile.open(tmp_path / "out" / "model.safetensors")
    assert json.loads(folded.metadata["prime_inference.kv_outer_scales"]) == report["layers"]


def test_a_dry_run_writes_nothing(prime: Prime, model: Path, tmp_path: Path) -> None:
    result = prime("kv", "fold-scales", model, "--dry-run")
    assert result.exit_code == 0
    assert f"{layer(0)}  2^" in result.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["model"]


def test_calibration_latents_decide_where_they_are_given(
    prime: Prime, model: Path, tmp_path: Path
) -> None:
    latents = np.zeros((3, 512), np.float32)
    latents[1, 7] = 0.02
    np.savez(tmp_path / "latents.npz", allow_pickle=False, **{layer(0): latents})
    result = prime(
        "kv", "fold-scales", model, tmp_path / "out",
        "--calibration", tmp_path / "latents.npz", "-o", "json",
    )  # fmt: skip
    assert json.loads(result.stdout)["layers"] == {layer(0): 14}  # 0.02 * 8 * 2**14 <= 2688


@pytest.mark.parametrize("extra", [[], ["out", "--dry-run"]])
def test_a_target_and_a_dry_run_exclude_each_other(prime: Prime, model: Path, extra) -> None:
    result = prime("kv", "fold-scales", model, *extra)
    assert result.exit_code == 1
    assert "--dry-run" in result.stderr


def test_a_folder_without_a_model_fails_in_json_too(prime: Prime, tmp_path: Path) -> None:
    result = prime("kv", "fold-scales", tmp_path, "--dry-run", "-o", "json")
    assert result.exit_code == 1
    assert json.loads(result.stderr)["error"]["code"] == "checkpoint_unfit"


@pytest.mark.parametrize("lengths", ["abc", "0,600", "600,-5", "", "600,600"])
def test_lengths_that_are_no_lengths_are_refused_before_anything_is_asked(
    prime: Prime, tmp_path: Path, lengths: str
) -> None:
    result = prime(
        "eval", "kv", "endpoints", "--reference", "http://127.0.0.1:1/v1", "--candidate",
        "http://127.0.0.1:1/v1", "--model", "m", "--out", tmp_path / "run", "--lengths", lengths,
    )  # fmt: skip
    assert result.exit_code == 1
    assert "--lengths" in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_dry_run_refuses_what_the_run_would_refuse(
    prime: Prime, model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "tiny.npz", allow_pickle=False, **{layer(0): np.full((1, 512), 1e-38)})
    for rest in (["--dry-run"], [tmp_path / "out"]):
        result = prime("kv", "fold-scales", model, *rest, "--calibration", tmp_path / "tiny.npz")
        assert result.exit_code == 1
        assert "not exact" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "kind",
    ["text", "cut", "one array", "nan", "words", "empty", "ints", "huge", "no array", "pipe"],
)
def test_a_broken_calibration_is_named(
    prime: Prime, model: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "latents.npz"
    latents = np.full((1, 512), np.nan if kind == "nan" else 1.0)
    held = {"words": np.array(["a"]), "ints": np.ones((1, 512), int)}.get(kind, latents)
    np.savez(path, allow_pickle=False, **{layer(0): held})
    if kind == "huge":  # an array of 4 PiB in a few bytes
        path.write_bytes(
            path.read_bytes().replace(b"(1, 512), }" + b" " * 12, b"(1099511627776, 512), }")
        )
    elif kind == "no array":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(layer(0), b"latents")
    elif kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    elif kind == "one array":
        with path.open("wb") as file:
            np.save(file, latents)
    elif kind in ("text", "cut", "empty"):
        path.write_bytes({"text": b"latents", "cut": path.read_bytes()[:300], "empty": b""}[kind])
    result = prime("kv", "fold-scales", model, "--dry-run", "--calibration", path, "-o", "json")
    assert result.exit_code == 1
    error = json.loads(result.stderr)["error"]
    assert "latents.npz" in error["message"]
    assert kind not in ("nan", "words", "ints", "no array") or layer(0) in error["message"]


@pytest.mark.parametrize("given", ["inf", "0.02,inf", "nan", "1,1", "1e-300"])
def test_magnitudes_that_are_none_are_refused(prime: Prime, given: str) -> None:
    result = prime("eval", "kv", "selector", "--magnitudes", given)
    assert result.exit_code == 1
    assert "--magnitudes" in result.stderr
