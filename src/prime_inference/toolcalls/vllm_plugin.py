"""The entry point `vllm.general_plugins`: our parsers and constraints inside vLLM.

    vllm serve MODEL --enable-auto-tool-choice --tool-call-parser prime-glm-4.7

One parser for each format, named `prime-FORMAT`. Registering imports nothing but vLLM's list of
parsers; a parser that nobody asks for costs nothing.
"""

from __future__ import annotations

from prime_inference.toolcalls.format import load

PARSERS = "prime_inference.toolcalls.vllm_parsers"
PREFIX = "prime-"


def class_name(form: str) -> str:
    """The name of a format's class in `vllm_parsers`: `glm-4.7` has `PrimeGlm47`."""
    return "Prime" + "".join(part.capitalize() for part in form.replace(".", "").split("-"))


def register() -> None:
    """What vLLM calls in each of its processes."""
    from vllm.tool_parsers import ToolParserManager

    for form in load():
        ToolParserManager.register_lazy_module(PREFIX + form, PARSERS, class_name(form))
