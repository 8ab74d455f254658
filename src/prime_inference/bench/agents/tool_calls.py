"""Tool schemas that go with every request, and whether the calls that come back keep them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from prime_inference.bench.agents.answers import ToolCall


class ToolsInvalid(ValueError):
    """A tools file that is no list of OpenAI function tools."""


class Tools:
    """Validators by tool name. Needs `jsonschema`, of the extra `bench`."""

    def __init__(self, definitions: Sequence[dict[str, Any]]) -> None:
        from jsonschema import Draft202012Validator

        self.definitions = list(definitions)
        self._validators: dict[str, Any] = {}
        for n, tool in enumerate(definitions):
            try:
                function = tool["function"]
                schema = function.get("parameters", {})
                Draft202012Validator.check_schema(schema)
                self._validators[function["name"]] = Draft202012Validator(schema)
            except Exception as error:  # whatever a foreign file may hold
                raise ToolsInvalid(f"tool {n}: {error}") from error

    @classmethod
    def load(cls, path: Path) -> Tools:
        """Raises ToolsInvalid, OSError."""
        try:
            return cls(msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]]))
        except msgspec.DecodeError as error:
            raise ToolsInvalid(f"{path.name}: {error}") from error

    @property
    def sha256(self) -> str:
        """Of the definitions."""
        return hashlib.sha256(msgspec.json.encode(self.definitions)).hexdigest()

    def invalid(self, calls: Sequence[ToolCall]) -> int:
        """How many name no tool, are no JSON, or break the tool's schema."""
        return sum(not self._valid(call) for call in calls)

    def _valid(self, call: ToolCall) -> bool:
        validator = self._validators.get(call.name)
        if validator is None:
            return False
        try:
            arguments = msgspec.json.decode(call.arguments or "{}")
        except msgspec.DecodeError:
            return False
        return bool(validator.is_valid(arguments))
