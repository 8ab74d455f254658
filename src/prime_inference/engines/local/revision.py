"""A short name for exactly these weights, tokenizer and chat template."""

from __future__ import annotations

import hashlib
from pathlib import Path

from prime_inference.engines.local.gguf import read_head

SAMPLES = 64
SAMPLE_BYTES = 64 * 1024
DIGITS = 16  # hexadecimal: that two of a million models share a name has a chance of 3e-8


def revision(path: Path) -> str:
    """SHA-256 over the file's size, its metadata, and 64 samples of 64 KiB of the rest.

    4 MiB are read instead of, say, 100 GB. The metadata holds tokenizer and template;
    training and quantisation change numbers everywhere, so the samples see them. Somebody
    who edits a few numbers by hand can escape. Raises NotGguf, OSError.
    """
    start = read_head(path).metadata_bytes
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(start))
        step = max(SAMPLE_BYTES, (size - start) // SAMPLES)
        for offset in range(start, size, step):
            file.seek(offset)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:DIGITS]
