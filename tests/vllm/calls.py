"""A tool whose calls are bounded: whatever a model writes, a call fits in few tokens."""

from __future__ import annotations

import json
from typing import Any

PARAMETERS = {
    "type": "object",
    "properties": {
        "room": {"enum": ["kitchen", "cellar"]},
        "on": {"type": "boolean"},
        "colour": {"enum": ["red", "green"]},
    },
    "required": ["room", "on", "colour"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "set_light", "description": "Switch a light.", "parameters": PARAMETERS},
}
MOST_TOKENS = 600
"""A call is 80 characters and as many tokens; between its parts JSON allows whitespace, of which
a random model writes three times as much, and seldom more."""


def is_valid(arguments: str) -> bool:
    """Whether the text is what `PARAMETERS` describes."""
    value: Any = json.loads(arguments)
    return (
        isinstance(value, dict)
        and value.keys() == {"room", "on", "colour"}
        and value["room"] in ("kitchen", "cellar")
        and isinstance(value["on"], bool)
        and value["colour"] in ("red", "green")
    )
