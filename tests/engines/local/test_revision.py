"""The name of exact weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_inference.engines.local.revision import SAMPLE_BYTES, SAMPLES, revision
from tests.engines.local.test_gguf import WHOLE, gguf, string

WEIGHTS = bytes(range(251)) * 200_000  # 50 MB, of which 4 MiB are read


def model(folder: Path, metadata: bytes = WHOLE, weights: bytes = WEIGHTS) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(metadata + weights)
    return file


def test_the_same_bytes_have_the_same_name_wherever_they_are(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    assert revision(model(tmp_path)) == revision(model(tmp_path / "elsewhere"))


@pytest.mark.parametrize("size", [0, 1, SAMPLE_BYTES, SAMPLE_BYTES + 1, SAMPLES * SAMPLE_BYTES])
def test_every_byte_of_a_small_file_counts(tmp_path: Path, size: int):
    whole = revision(model(tmp_path, weights=WEIGHTS[:size]))
    for place in {0, size // 2, size - 1} if size else ():
        edited = bytearray(WEIGHTS[:size])
        edited[place] ^= 1
        assert revision(model(tmp_path, weights=bytes(edited))) != whole


@pytest.mark.parametrize(
    ("metadata", "weights"),
    [
        (WHOLE, WEIGHTS[:-1]),
        (WHOLE, bytes(byte ^ 1 for byte in WEIGHTS)),
        (gguf(("general.architecture", 8, string("llama"))), WEIGHTS),
    ],
    ids=["another length", "other weights", "another tokenizer"],
)
def test_another_model_has_another_name(tmp_path: Path, metadata: bytes, weights: bytes):
    assert revision(model(tmp_path)) != revision(model(tmp_path, metadata, weights))


def test_the_default_models_name_is_short_and_known(model_file: Path):
    assert revision(model_file) == "163a29f38aa60dd8"
