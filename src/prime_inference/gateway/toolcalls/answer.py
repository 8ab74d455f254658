"""The tool calls of one attempt's answer: how they are found, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.models import Deployment
from prime_inference.domain.tool_verdict import ToolVerdict
from prime_inference.gateway.toolcalls.judge import Judge
from prime_inference.gateway.toolcalls.raw_text import RawText
from prime_inference.gateway.toolcalls.request import RequestTools
from prime_inference.toolcalls.format import format_named
from prime_inference.wire.openai.calls import ANY_CALLS, Call, CallRules, TextReader


class AnswerTools:
    """What one attempt needs to know of the request's tools."""

    def __init__(self, tools: RequestTools, deployment: Deployment) -> None:
        self._tools = tools
        self._deployment = deployment
        self._readers: list[RawText] = []
        parses = deployment.tool_parser != "upstream"
        if parses or tools.only is not None or not tools.parallel:
            self.rules = CallRules(
                parallel=tools.parallel and tools.only is None,
                only=tools.only,
                new_reader=self._new_reader if parses else None,
            )
        else:
            self.rules = ANY_CALLS

    def judge(
        self, choices: Sequence[tuple[str, Sequence[Call]]], judge: Judge, tenant: str
    ) -> None:
        """Have a whole answer judged: finish reason and calls of each choice."""
        calls = [
            (call.name or "", call.arguments)
            for reason, found in choices
            for call in (found[:-1] if reason == "length" else found)  # the limit cut the last
        ]
        finished = any(reason == "tool_calls" for reason, _ in choices)
        missing = self._tools.must_call and any(
            reason == "stop" and not found for reason, found in choices
        )
        if not (calls or finished or missing):
            return
        cut = any(reason == "length" for reason, _ in choices)
        broken = not cut and any(reader.broken for reader in self._readers)
        verdict = ToolVerdict(
            model=self._deployment.model,
            deployment=self._deployment.id,
            finished_with_calls=finished,
            errors=("InvalidJson",) if broken else (),
            missing=missing,
            caller=hash((tenant, self._tools.raw)),
        )
        judge.add(verdict, calls, self._tools.called(name for name, _ in calls))

    def _new_reader(self) -> TextReader:
        parser = self._deployment.tool_parser
        assert parser != "upstream"
        reader = RawText(format_named(parser.format), self._tools.tool_set, parser.reasoning)
        self._readers.append(reader)
        return reader
