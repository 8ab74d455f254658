"""What vLLM is told of our parsers. Inside a real vLLM they are run by
`benchmarks/upstream_parsers`; here stands a list in the place of vLLM's."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from prime_inference.toolcalls import vllm_plugin
from prime_inference.toolcalls.format import load


def test_every_format_is_offered_under_a_name_of_its_own(monkeypatch: pytest.MonkeyPatch):
    offered: dict[str, tuple[str, str]] = {}

    def register_lazy_module(name: str, module_path: str, class_name: str) -> None:
        offered[name] = (module_path, class_name)

    manager = SimpleNamespace(register_lazy_module=register_lazy_module)
    parsers = SimpleNamespace(ToolParserManager=manager)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(tool_parsers=parsers))
    monkeypatch.setitem(sys.modules, "vllm.tool_parsers", parsers)
    vllm_plugin.register()
    assert set(offered) == {f"prime-{form}" for form in load()}
    assert offered["prime-glm-4.7"] == ("prime_inference.toolcalls.vllm_parsers", "PrimeGlm47")
    assert len({class_name for _, class_name in offered.values()}) == len(load())
    assert "prime_inference.toolcalls.vllm_parsers" not in sys.modules


def test_vllm_finds_the_plug_in_by_its_entry_point():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    entry = project["entry-points"]["vllm.general_plugins"]["prime_tool_calls"]
    module, function = entry.split(":")
    assert getattr(sys.modules[module], function) is vllm_plugin.register
