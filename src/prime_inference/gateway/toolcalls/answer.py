"""The tool calls of one attempt's answer: how they are found, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence

from prime_inference.domain.models import Deployment
from prime_inference.domain.tool_verdict import Cut, ToolVerdict
from prime_inference.gateway.toolcalls.judge import Judge
from prime_inference.gateway.toolcalls.raw_text import RawText
from prime_inference.gateway.toolcalls.request import RequestTools
from prime_inference.toolcalls.format import format_named
from prime_inference.wire.openai.calls import CallRules, ChoiceCalls, TextReader


class AnswerTools:
    """What one attempt needs to know of the request's tools."""

    def __init__(self, tools: RequestTools, deployment: Deployment) -> None:
        self._tools = tools
        self._deployment = deployment
        self._readers: list[RawText] = []
        parses = deployment.tool_parser != "upstream"
        self.rules = CallRules(
            parallel=tools.parallel and tools.only is None,
            only=tools.only,
            new_reader=self._new_reader if parses else None,
            stops=tools.stops,
            objects=tools.objects,
            none=tools.must_not_call,
        )

    def judge(self, choices: Sequence[ChoiceCalls], judge: Judge, tenant: str) -> None:
        """Have a whole answer judged. What cut a call is no fault of the model's."""
        calls = [
            (call.name or "", call.arguments)
            for choice in choices
            for call in choice.calls
            if not call.cut
        ]
        cut = next((by for choice in choices if (by := self._cut(choice))), None)
        finished = any(choice.reason == "tool_calls" for choice in choices)
        missing = (
            cut is None
            and self._tools.must_call
            and any(choice.reason == "stop" and not choice.calls for choice in choices)
        )
        unwanted = any(choice.unwanted for choice in choices)
        if not (calls or finished or missing or cut or unwanted):
            return
        broken = cut is None and any(reader.broken for reader in self._readers)
        verdict = ToolVerdict(
            model=self._deployment.model,
            deployment=self._deployment.id,
            finished_with_calls=finished,
            errors=("InvalidJson",) if broken else (),
            missing=missing,
            cut=cut,
            unwanted=unwanted,
            only_cut=not (calls or finished or missing),
            caller=hash((tenant, self._tools.raw)),
        )
        judge.add(verdict, calls, self._tools.called(name for name, _ in calls))

    def _cut(self, choice: ChoiceCalls) -> Cut | None:
        """What ended a call of this choice, or came before one that had to come."""
        if any(call.cut for call in choice.calls):
            return "length" if choice.reason == "length" else "stop"
        return "stop" if choice.stopped and self._tools.must_call and not choice.calls else None

    def _new_reader(self) -> TextReader:
        parser = self._deployment.tool_parser
        assert parser != "upstream"
        reader = RawText(
            format_named(parser.format),
            self._tools.tool_set,
            parser.reasoning,
            calls=not self._tools.must_not_call,
        )
        self._readers.append(reader)
        return reader
