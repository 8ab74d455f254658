from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

import pytest

from prime_inference.kvcache import vllm_plugin
from prime_inference.kvcache.vllm_plugin import (
    SUPPORTED_VLLM,
    SWITCH,
    VllmUnsupported,
    check_vllm,
    register,
)


def test_without_the_switch_the_plug_in_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    before = set(sys.modules)
    register()
    assert set(sys.modules) == before


def test_another_vllm_is_refused_with_both_versions_in_the_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setattr(vllm_plugin, "installed_vllm", lambda: "0.32.1")
    with pytest.raises(VllmUnsupported, match=r"needs vLLM 0\.33\.0; vLLM 0\.32\.1 is installed"):
        register()


def test_no_vllm_is_said_plainly() -> None:
    with pytest.raises(ImportError, match="no vLLM is installed"):
        check_vllm(None)


@pytest.mark.parametrize("installed", [*SUPPORTED_VLLM, "0.33.0+cpu"])
def test_the_listed_versions_pass_with_any_local_suffix(installed: str) -> None:
    check_vllm(installed)


@pytest.mark.parametrize("installed", ["0.33.1", "0.33", "0.33.0rc1", "1.0"])
def test_a_version_near_a_listed_one_does_not_pass(installed: str) -> None:
    with pytest.raises(VllmUnsupported):
        check_vllm(installed)


def test_vllm_finds_the_plug_in_by_its_entry_point() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["prime_nvfp4_kv"]
    module, function = entry.split(":")
    assert getattr(sys.modules[module], function) is register


def test_importing_the_backend_without_its_vllm_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_plugin, "installed_vllm", lambda: None)
    monkeypatch.delitem(sys.modules, "prime_inference.kvcache.vllm_backend", raising=False)
    with pytest.raises(VllmUnsupported, match=r"needs vLLM 0\.33\.0; no vLLM is installed"):
        importlib.import_module("prime_inference.kvcache.vllm_backend")
