"""An OpenAI-compatible engine that answers deterministic text and misbehaves on demand.

Stands in for a model server in tests, benchmarks and fault scenarios. `text` says what it
answers, `behaviour` how it can misbehave, `engine` has the server.
"""

from prime_inference.engines.mock.behaviour import SCENARIOS, Behaviour, UnknownBehaviour
from prime_inference.engines.mock.engine import MockEngine
from prime_inference.engines.mock.journal import Seen
from prime_inference.engines.mock.text import expected_text, expected_usage

__all__ = [
    "SCENARIOS",
    "Behaviour",
    "MockEngine",
    "Seen",
    "UnknownBehaviour",
    "expected_text",
    "expected_usage",
]
