"""Compile the CUDA kernels for sm_90a and report what they take of a multiprocessor.

`python -m prime_inference.kvcache.kernels.sm90.build LIBRARY` compiles the library; without an
argument it writes resources.json beside this file anew, which a test compares with a fresh
compilation.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from prime_inference.kvcache.errors import KvCacheError
from prime_inference.kvcache.kernels.sm90.params import RowFormat

HERE: Final = Path(__file__).parent
SOURCE: Final = HERE / "sparse_decode.cu"
RESOURCES: Final = HERE / "resources.json"
FLAGS: Final = ("-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Xptxas", "-v")
SHARED_LIBRARY: Final = ("-Xcompiler", "-fPIC", "-shared")
# Kernel name in the report -> pattern of its mangled name, format and heads of its Plan.
KERNELS: Final = {
    "nvfp4.heads16": (r"Nvfp4RowELi16", RowFormat.NVFP4, 16),
    "nvfp4.heads64": (r"Nvfp4RowELi64", RowFormat.NVFP4, 64),
    "fp8.heads64": (r"Fp8RowELi64", RowFormat.FP8, 64),
    "bf16.heads64": (r"Bf16RowELi64", RowFormat.BF16, 64),
    "combine_parts": (r"combine_parts", None, 0),
}


class CompilerMissing(KvCacheError):
    """No nvcc on the PATH and none from the packages of the extra `kv-torch`."""


class CompilationFailed(KvCacheError):
    """nvcc refused the source; the message is its output."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What one kernel takes: registers per thread, bytes spilled, bytes of shared memory."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack: int
    shared_bytes: int


def find_nvcc() -> Path:
    """nvcc on the PATH, else the one that the packages `nvidia-cuda-nvcc` etc. installed."""
    on_path = shutil.which("nvcc")
    if on_path:
        return Path(on_path)
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        packaged = Path(root) / "cu13" / "bin" / "nvcc"
        if packaged.exists():
            return packaged
    raise CompilerMissing("nvcc is neither on the PATH nor among the installed packages")


def compile_library(target: Path) -> dict[str, Resources]:
    """Build the shared library `target` and report its kernels."""
    nvcc = find_nvcc()
    libraries = nvcc.resolve().parent.parent / "lib"
    run = subprocess.run(
        [nvcc, *FLAGS, f"-I{HERE}", f"-L{libraries}", *SHARED_LIBRARY, "-o", target, SOURCE],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise CompilationFailed(run.stderr)
    return parse_resources(run.stderr, ctypes.CDLL(str(target)))


def parse_resources(log: str, library: ctypes.CDLL) -> dict[str, Resources]:
    """The kernels in ptxas's verbose output, with the dynamic shared memory of the library."""
    pattern = re.compile(
        r"entry function '(?P<name>\w+)'.*?"
        r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, "
        r"(?P<loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers",
        re.DOTALL,
    )
    found = list(pattern.finditer(log))
    report = {}
    for kernel, (mangled, row_format, heads) in KERNELS.items():
        match = next(m for m in found if re.search(mangled, m["name"]))
        shared = 0 if row_format is None else library.prime_shared_bytes(int(row_format), heads)
        report[kernel] = Resources(
            int(match["registers"]), int(match["stores"]), int(match["loads"]),
            int(match["stack"]), shared,
        )  # fmt: skip
    return report


def compiler_release() -> str:
    """As `13.0`."""
    text = subprocess.run([find_nvcc(), "--version"], capture_output=True, text=True, check=True)
    match = re.search(r"release (\d+\.\d+)", text.stdout)
    return match[1] if match else "unknown"


def main(library: str | None = None) -> None:
    if library is not None:
        compile_library(Path(library).resolve())
        return
    with tempfile.TemporaryDirectory() as folder:
        kernels = compile_library(Path(folder) / "decode.so")
    report = {
        "nvcc": compiler_release(),
        "target": "sm_90a",
        "kernels": {name: asdict(one) for name, one in kernels.items()},
    }
    RESOURCES.write_text(json.dumps(report, indent=1) + "\n")
    sys.stdout.write(RESOURCES.read_text())


if __name__ == "__main__":
    main(*sys.argv[1:2])
