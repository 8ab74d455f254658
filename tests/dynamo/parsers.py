"""Gives command lines to Dynamo's own parsers; runs in Dynamo's environment.

Reads `[[module, [argument, ...]], ...]` from standard input and writes what each parser
said: null, or what it did not know. `names` as a module writes the parsers' names.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import warnings
from typing import Any


def frontend(arguments: list[str]) -> None:
    module: Any = importlib.import_module("dynamo.frontend.frontend_args")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    module.FrontendArgGroup().add_arguments(parser)
    module.FrontendConfig.from_cli_args(parser.parse_args(arguments)).validate()


def mocker(arguments: list[str]) -> None:
    importlib.import_module("dynamo.mocker.args").parse_args(arguments)


def vllm(arguments: list[str]) -> None:
    """Both parsers of a worker: Dynamo's takes what it knows, vLLM's must know the rest."""
    module: Any = importlib.import_module("dynamo.vllm.args")
    config, _ = module._parse_cli_args(arguments)
    config.validate()


def names(_: list[str]) -> dict[str, list[str]]:
    core: Any = importlib.import_module("dynamo._core")
    return {
        "tools": sorted(core.get_tool_parser_names()),
        "reasoning": sorted(core.get_reasoning_parser_names()),
    }


PARSERS = {
    "dynamo.frontend": frontend,
    "dynamo.mocker": mocker,
    "dynamo.vllm": vllm,
    "names": names,
}


def main() -> None:
    warnings.simplefilter("always")  # flags that are about to go, on standard error
    answers: list[object] = []
    for module, arguments in json.load(sys.stdin):
        try:
            answers.append(PARSERS[module](arguments))
        except SystemExit:
            answers.append("refused: see standard error")
        except Exception as error:  # whatever it is, the test shows it
            answers.append(f"{type(error).__name__}: {error}")
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
