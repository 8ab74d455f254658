"""The agent benchmark: replayed sessions, cold arrivals, and what they measured.

Words, flow and metric definitions: docs/agent-benchmark.md.
"""
