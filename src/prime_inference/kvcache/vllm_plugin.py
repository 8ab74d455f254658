"""The entry point `vllm.general_plugins`: serve `--kv-cache-dtype nvfp4_ds_mla` on Hopper.

vLLM loads every installed plug-in, so this one does nothing unless PRIME_NVFP4_KV=1 is set;
then it replaces the backend FLASHMLA_SPARSE by a subclass that adds the NVFP4 rows on SM90 and
leaves everything else as it is. vLLM promises no stable interface to backends: the exact
versions that this was written against are listed, and any other one is refused.
"""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from prime_inference.kvcache.errors import KvCacheError

SUPPORTED_VLLM: Final = ("0.33.0",)
SWITCH: Final = "PRIME_NVFP4_KV"
BACKEND: Final = "prime_inference.kvcache.vllm_backend.Nvfp4HopperBackend"


class VllmUnsupported(KvCacheError, ImportError):
    """The vLLM that is installed is not one this plug-in was written against."""

    def __init__(self, installed: str | None) -> None:
        what = f"vLLM {installed}" if installed else "no vLLM"
        super().__init__(
            f"NVFP4 KV on Hopper needs vLLM {' or '.join(SUPPORTED_VLLM)}; {what} is installed. "
            f"Install that version, or unset {SWITCH}."
        )
        self.installed = installed


def check_vllm(installed: str | None) -> None:
    """Raise `VllmUnsupported` unless `installed` is a listed version; a local suffix is fine."""
    if installed is None or installed.split("+")[0] not in SUPPORTED_VLLM:
        raise VllmUnsupported(installed)


def installed_vllm() -> str | None:
    """The installed version, None where there is none."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def register() -> None:
    """What vLLM calls in each of its processes. Raises `VllmUnsupported`."""
    if os.environ.get(SWITCH) != "1":
        return
    check_vllm(installed_vllm())
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.FLASHMLA_SPARSE, BACKEND)
