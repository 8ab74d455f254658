"""Completes an environment of `requirements/vllm-cpu.txt` so that Dynamo's worker starts in it.

    .envs/vllm/bin/python scripts/complete_vllm_cpu.py

The one work-around that vLLM's CPU build and Dynamo 1.6.1 need in their packages; it can go when
its reason has. What is left out of the lock is in `requirements/vllm-cpu-overrides.in`, and what
vLLM's CPU build is told besides in `src/prime_inference/fleet/vllm_cpu.py`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

TORCHVISION = {
    "__init__.py": '"""Stands in for torchvision: names to import, nothing that works."""\n'
    '__version__ = "0"\n',
    "io.py": "ImageReadMode = decode_image = None\n",
    "transforms/__init__.py": "import enum\n\n"
    "InterpolationMode = enum.Enum(\n"
    '    "InterpolationMode", "NEAREST_EXACT BOX BILINEAR HAMMING BICUBIC LANCZOS"\n'
    ")\n",
    "transforms/functional.py": "pil_to_tensor = None\n",
    "transforms/v2/__init__.py": "",
    "transforms/v2/functional.py": "",
}
"""`dynamo.vllm` imports a function about image sizes from transformers, whose module imports
torchvision. PyPI has torchvision for CUDA only; with torch's CPU build its import raises
"operator torchvision::nms does not exist" (https://github.com/vllm-project/vllm/issues/15372).
Requests with images are not for this environment."""


def stand_in_for_torchvision(packages: Path) -> None:
    """Write the stand-in, unless the environment has the real one."""
    folder = packages / "torchvision"
    first = folder / "__init__.py"
    if first.exists() and first.read_text() != TORCHVISION["__init__.py"]:
        return
    for name, text in TORCHVISION.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def main() -> None:
    packages = Path(sysconfig.get_paths()["purelib"])
    stand_in_for_torchvision(packages)


if __name__ == "__main__":
    main()
