"""What requests with tools need beyond their own attempt: a judge, and time off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from prime_inference.domain.models import Deployment
from prime_inference.gateway.toolcalls.answer import AnswerTools
from prime_inference.gateway.toolcalls.constrain import constraint
from prime_inference.gateway.toolcalls.judge import Judge
from prime_inference.gateway.toolcalls.request import RequestTools
from prime_inference.ports.tool_verdicts import ToolVerdictSink
from prime_inference.wire.openai.calls import ChoiceCalls


class ToolCalls:
    """Shared by all requests of a gateway."""

    def __init__(self, sinks: Sequence[ToolVerdictSink]) -> None:
        self._judge = Judge(sinks)
        # One thread: several would leave the event loop's own a smaller share each.
        self._builder = ThreadPoolExecutor(1, thread_name_prefix="tool-constraints")

    async def prepare(self, tools: RequestTools, deployment: Deployment) -> None:
        """Build the constraint of a large set of tools where it holds nobody up."""
        parser = deployment.tool_parser
        if parser == "upstream" or not tools.is_large:
            return
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._builder, constraint, tools, parser, deployment.engine)

    def answered(self, answer: AnswerTools, choices: Sequence[ChoiceCalls], tenant: str) -> None:
        """A whole answer has come; what became of the calls of each choice."""
        answer.judge(choices, self._judge, tenant)

    async def close(self) -> None:
        self._builder.shutdown(wait=False, cancel_futures=True)
        await self._judge.close()
