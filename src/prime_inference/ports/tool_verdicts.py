"""Where verdicts on tool calls are counted."""

from __future__ import annotations

from typing import Protocol

from prime_inference.domain.tool_verdict import ToolVerdict


class ToolVerdictSink(Protocol):
    """Takes each verdict once. Called on the event loop: it may not wait or raise."""

    def judged(self, verdict: ToolVerdict) -> None: ...
