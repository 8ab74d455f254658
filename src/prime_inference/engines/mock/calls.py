"""Tool calls as engines get them wrong, made of ones that are right."""

from __future__ import annotations

from typing import Any

import msgspec

from prime_inference.engines.mock.behaviour import Behaviour


def with_faults(call: dict[str, Any], name: str | None, behaviour: Behaviour) -> dict[str, Any]:
    """One call, or a piece of one, with what the behaviour gets wrong. `name` is the call's."""
    function = call["function"]
    if behaviour.repeat_names:
        call = {**call, "id": f"call_{name}", "type": "function"}
        function = {**function, "name": name}
    if behaviour.no_ids:
        call = {key: value for key, value in call.items() if key != "id"}
    if behaviour.same_ids and "id" in call:
        call = {**call, "id": "call_0"}
    if behaviour.no_indices:
        call = {key: value for key, value in call.items() if key != "index"}
    if behaviour.same_indices and "index" in call:
        call = {**call, "index": 0}
    if behaviour.null_names and "name" in function:
        function = {**function, "name": None}
    if behaviour.no_arguments:
        function = {**function, "arguments": ""}
    elif behaviour.object_arguments and function.get("arguments"):
        function = {**function, "arguments": msgspec.json.decode(function["arguments"])}
    return {**call, "function": function}


def with_wrong_arguments(arguments: str, behaviour: Behaviour) -> str:
    """The JSON text of arguments, or what the behaviour has in its place."""
    if behaviour.broken_arguments:
        return arguments[:-1]
    return "[]" if behaviour.wrong_arguments else arguments
