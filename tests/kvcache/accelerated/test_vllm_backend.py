"""With vLLM 0.33.0 installed, which `make test-kv-vllm` does and `make test-kv` does not: 4 GB.

No GPU is needed; the platform's answer about its capability stands for one.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from prime_inference.kvcache.attention import relative_l2, sparse_decode
from prime_inference.kvcache.nvfp4 import dequantize, quantize

if find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore")  # vLLM's imports warn about other packages


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> Any:
    from prime_inference.kvcache import vllm_backend

    platform = SimpleNamespace(is_device_capability_family=lambda family: family == 90)
    monkeypatch.setattr(vllm_backend, "current_platform", platform)
    return vllm_backend


def test_registering_replaces_the_sparse_backend_under_its_own_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    from prime_inference.kvcache.vllm_plugin import BACKEND, SWITCH, register

    monkeypatch.setenv(SWITCH, "1")
    register()
    backend = AttentionBackendEnum.FLASHMLA_SPARSE.get_class()
    assert f"{backend.__module__}.{backend.__qualname__}" == BACKEND
    assert backend.get_name() == "FLASHMLA_SPARSE"
    assert "nvfp4_ds_mla" in backend.supported_kv_cache_dtypes
    assert not backend.get_impl_cls().__abstractmethods__


@pytest.mark.parametrize("switch", ["1", "0"])
def test_vllm_loads_the_installed_plug_in_and_it_replaces_nothing_unasked(switch: str) -> None:
    code = (
        "from vllm.plugins import load_general_plugins\n"
        "from vllm.v1.attention.backends.registry import AttentionBackendEnum\n"
        "load_general_plugins()\n"
        "print(AttentionBackendEnum.FLASHMLA_SPARSE.get_class().__name__)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PRIME_NVFP4_KV": switch},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    name = "Nvfp4HopperBackend" if switch == "1" else "FlashMLASparseBackend"
    assert run.stdout.splitlines()[-1] == name


def test_hopper_takes_the_rows_that_vllm_refuses_and_the_rest_is_as_before(hopper: Any) -> None:
    from vllm.platforms.interface import DeviceCapability

    def answer(backend: Any, dtype: str, head_size: int = 576) -> str | None:
        hopper_capability = DeviceCapability(9, 0)
        reason: str | None = backend.supports_combination(
            head_size, torch.bfloat16, dtype, 64, True, False, True, False, hopper_capability
        )
        return reason

    stock = hopper.FlashMLASparseBackend
    assert "SM100" in (answer(stock, "nvfp4_ds_mla") or "")
    assert answer(hopper.Nvfp4HopperBackend, "nvfp4_ds_mla") is None
    assert "576" in (answer(hopper.Nvfp4HopperBackend, "nvfp4_ds_mla", 512) or "")
    assert answer(hopper.Nvfp4HopperBackend, "fp8_ds_mla") == answer(stock, "fp8_ds_mla") is None


@pytest.mark.parametrize("method", ["do_kv_cache_update", "forward_mqa"])
def test_overridden_methods_take_the_arguments_that_vllm_gives(hopper: Any, method: str) -> None:
    ours = inspect.signature(getattr(hopper.Nvfp4HopperImpl, method))
    theirs = inspect.signature(getattr(hopper.FlashMLASparseImpl, method))
    assert list(ours.parameters) == list(theirs.parameters)


def test_a_layer_writes_and_attends_on_hopper(hopper: Any) -> None:
    impl = object.__new__(hopper.Nvfp4HopperImpl)  # its constructor wants a whole engine
    impl.kv_cache_dtype, impl.softmax_scale = "nvfp4_ds_mla", 576**-0.5
    impl.need_to_return_lse_for_decode = True
    impl._topk_indices_buffer = None
    chosen = torch.tensor([[0, 5, 3, -1], [2, 2, 1, -1]], dtype=torch.int32)
    type(impl).topk_indices_buffer.fset(impl, chosen)
    cache = torch.zeros(4, 64, 352, dtype=torch.uint8)
    latent, rope = torch.randn(6, 512).bfloat16(), torch.randn(6, 1, 64).bfloat16()
    slots = torch.arange(128, 134)
    impl.do_kv_cache_update(latent, rope, cache, slots, "nvfp4_ds_mla", torch.ones(1))
    rows = quantize(latent.float().numpy(), rope[:, 0].float().numpy(), writer="four_over_six")
    np.testing.assert_array_equal(cache[2, :6].numpy(), rows)
    metadata = SimpleNamespace(
        req_id_per_token=torch.zeros(2, dtype=torch.int32),
        block_table=torch.tensor([[2]], dtype=torch.int32),
        block_size=64,
    )
    query = torch.randn(2, 16, 576).bfloat16()
    parts = (query[..., :512], query[..., 512:])
    out, lse = impl.forward_mqa(parts, cache, metadata, None)
    want, want_lse = sparse_decode(
        query.float().numpy(), *dequantize(rows), chosen.numpy(), scale=576**-0.5
    )
    assert relative_l2(out.float().numpy(), want) < 2e-3
    np.testing.assert_allclose(lse.numpy(), want_lse, rtol=1e-3)
