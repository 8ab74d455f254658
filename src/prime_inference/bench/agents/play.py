"""One replay of one tree: its turns in order, its subagents beside them."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import string
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from prime_inference.bench.agents.blocks import SeenBlocks
from prime_inference.bench.agents.prompts import Cuts, PromptText, cache_marker, layouts
from prime_inference.bench.agents.records import OVERFLOW, Kind, Phase, Record
from prime_inference.bench.agents.sender import Planned, Sender
from prime_inference.bench.agents.vocabulary import Vocabulary
from prime_inference.bench.agents.workload import Session, Subagent, Turn, hit_tokens


class PlayOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for every play of a point. Seconds.

    `vocabulary` is None where the workload holds texts. `nonce` goes into every marker: the
    same seed at another point, or in another run, must find nothing cached.
    """

    seed: int
    nonce: str
    vocabulary: Vocabulary | None
    cancel_share: float = 0.0


class PlayEnded(Exception):
    """The point's time is over: nothing new starts."""


class Play:
    """Plays `tree`; `number` is unlike that of any other play of the point.

    `scope` is what its block ids are unique in, `marker` what makes its prompts its own.
    """

    def __init__(
        self, tree: Session, number: int, sender: Sender, options: PlayOptions, *,
        scope: str, marker: str, seen: SeenBlocks | None = None,
    ) -> None:  # fmt: skip
        self.tree = tree
        self._number = number
        self._sender = sender
        self._options = options
        self._scope = scope
        self._seen = seen or SeenBlocks()
        self._name = f"{tree.id}-{number}"
        self._deadline = math.inf
        self._rng = random.Random(f"play {options.seed} {number}")
        self._marker: list[str] = []
        self._text: PromptText | None = None
        self._layouts: dict[str, list[Cuts]] = {}
        self._prepared: dict[tuple[str, int], bytes] = {}
        if options.vocabulary is not None:
            self._marker = cache_marker(options.vocabulary.words, f"{options.nonce} {marker}")
            self._text = PromptText(options.vocabulary, scope)

    @property
    def now(self) -> float:
        """Seconds since the point began."""
        return self._sender.now

    def prepare(self, index: int) -> None:
        """Write turn `index` now, so that it need not be written when it is due."""
        self._prepared[self.tree.id, index] = self._body(self.tree, index, [], None)[0]

    async def warm_up(self, first: int, count: int) -> None:
        """Send `count` turns from `first` on with one token each, without their delays."""
        for index in range(first, min(first + count, len(self.tree.turns))):
            now = self._sender.now
            await self._send(self.tree, index, [], "warmup", "warm", now, now, 0.0, tokens=1)

    async def run(
        self, *, begin: int = 0, due: float, schedule: float | None = None,
        deadline: float = math.inf,
    ) -> bool:  # fmt: skip
        """Play from turn `begin`, which is due then, to the end; whether it came to the end.

        `schedule` is the intended time of turn 0 in an open loop; None closes the loop, so
        that what is intended is what is due. Nothing starts at or after `deadline`.
        """
        self._deadline = deadline
        try:
            await self._session(self.tree, "warm", begin, due, schedule)
        except PlayEnded:
            return False
        return True

    async def _session(
        self, session: Session, kind: Kind, begin: int, due: float, schedule: float | None
    ) -> float:
        """All turns; returns when the last thing of it ended."""
        branches: dict[int, asyncio.Task[float]] = {}
        history: list[Mapping[str, Any]] = []
        end = due
        try:
            for index in range(begin, len(session.turns)):
                turn = session.turns[index]
                wait = turn.delay
                if index > begin:
                    ends = [await branches[n] for n in turn.waits_for if n in branches]
                    end = max([end, *ends])  # of all that it waits for
                    due = end + turn.delay
                intended = due
                if schedule is not None:
                    intended = schedule + turn.start - session.turns[0].start
                    due = max(intended, end) if index > begin else intended
                    wait = due - end if index > begin else wait  # what a slow server left of it
                record = await self._turn(session, index, history, kind, intended, due, wait)
                end = record.end
                if record.outcome == OVERFLOW:
                    break
                self._branch(session, index, end, branches)
            return max([end, *[await task for task in branches.values()]])
        except PlayEnded:
            await _grace(branches.values())
            raise
        finally:
            await _settle(branches.values())

    def _branch(
        self, session: Session, index: int, end: float, branches: dict[int, asyncio.Task[float]]
    ) -> None:
        """Start the subagents that follow turn `index`."""
        for n, subagent in enumerate(session.subagents):
            if subagent.after_turn == index and subagent.session.turns:
                branches[n] = asyncio.create_task(self._subagent(subagent, end))

    async def _subagent(self, subagent: Subagent, parent_end: float) -> float:
        due = parent_end + subagent.delay
        return await self._session(subagent.session, "subagent", 0, due, None)

    async def _turn(
        self, session: Session, index: int, history: list[Mapping[str, Any]], kind: Kind,
        intended: float, due: float, wait: float,
    ) -> Record:  # fmt: skip
        return await self._send(session, index, history, "profiling", kind, intended, due, wait)

    async def _send(
        self, session: Session, index: int, history: list[Mapping[str, Any]], phase: Phase,
        kind: Kind, intended: float, due: float, wait: float, tokens: int | None = None,
    ) -> Record:  # fmt: skip
        turn = session.turns[index]
        asked = turn.output_tokens if tokens is None else tokens
        body, messages = self._body(session, index, history, tokens)
        planned = Planned(
            phase=phase, kind=kind, session=session.id, play=self._number, turn=index,
            body=body, intended=intended, due=due,
            asked_tokens=asked, input_tokens=turn.input_tokens, headers=self._headers(session),
            wait=wait, tolerance=self._tolerance(session),
            last_turn=session is self.tree and index == len(session.turns) - 1,
            cancel_after=self._cancel_after(asked) if phase == "profiling" else None,
        )  # fmt: skip
        came = await self._sender.idle.until(due, self._deadline)
        if came >= self._deadline:
            raise PlayEnded
        skipped = due - came
        planned.due -= skipped
        planned.intended -= skipped
        planned.wait = max(0.0, planned.wait - skipped)
        if turn.blocks:
            planned.hit_tokens = hit_tokens(turn, session.block_tokens, self._seen)
            self._seen.add(turn.blocks)
        record, text = await self._sender.send(planned)
        if turn.threaded:
            history[:] = [*messages, {"role": "assistant", "content": text}]
        return record

    def _body(
        self, session: Session, index: int, history: Sequence[Mapping[str, Any]],
        tokens: int | None,
    ) -> tuple[bytes, Sequence[Mapping[str, Any]]]:  # fmt: skip
        """The JSON of a turn, and its messages where later turns go on from them."""
        ready = self._prepared.pop((session.id, index), None) if tokens is None else None
        if ready is not None and not session.turns[index].threaded:
            return ready, []
        messages = self._messages(session, index, history)
        asked = session.turns[index].output_tokens if tokens is None else tokens
        return self._sender.body(messages, asked), messages

    def _messages(
        self, session: Session, index: int, history: Sequence[Mapping[str, Any]]
    ) -> Sequence[Mapping[str, Any]]:
        turn: Turn = session.turns[index]
        if turn.messages is not None:
            return [*history, *turn.messages] if turn.threaded else turn.messages
        assert self._text is not None, "a workload of counts has a vocabulary"
        assert self._options.vocabulary is not None
        cuts = self._layouts.get(session.id)
        if cuts is None:
            cuts = self._layouts[session.id] = layouts(session, self._options.vocabulary)
        return self._text.messages(session, index, cuts[index], self._marker)

    def _tolerance(self, session: Session) -> int:
        """Tokens that a cache may hold beyond the plan's hit: a block begun, the system prompt
        of an earlier play, and the template's own, which stand before or between them."""
        template = 0 if self._options.vocabulary is None else self._options.vocabulary.first_user
        return session.block_tokens + session.system_tokens + template

    def _cancel_after(self, tokens: int) -> int | None:
        """Half of the answer, for the share of requests that a client gives up."""
        if self._rng.random() >= self._options.cancel_share:
            return None
        return max(1, tokens // 2)

    def _headers(self, session: Session) -> bytes:
        """The affinity headers that AgentX's client sends."""
        tree = _header_value(self._name)
        own = tree if session is self.tree else f"{tree}/{_header_value(session.id)}"
        lines = f"x-correlation-id: {own}\r\nx-session-id: {own}\r\nx-dynamo-session-id: {own}\r\n"
        if session is not self.tree:
            lines += f"x-dynamo-parent-session-id: {tree}\r\n"
        return lines.encode("ascii")


def _header_value(name: str) -> str:
    """A trace's own name without what could end a header: percent-encoded beyond the visible."""
    return urllib.parse.quote(name, safe=string.punctuation)


async def _grace(tasks: Iterable[asyncio.Task[float]]) -> None:
    """What is in flight at the end of the point comes to its end, as long as the grace lasts."""
    for task in tasks:
        with contextlib.suppress(PlayEnded):
            await task


async def _settle(tasks: Any) -> None:
    """Cancel what still runs and wait for it, so that nothing outlives its parent."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
