"""Readers of trace files, each from its own form to the workload's."""

from prime_inference.bench.agents.traces.errors import TraceError
from prime_inference.bench.agents.traces.read import FORMS, read_trace

__all__ = ["FORMS", "TraceError", "read_trace"]
