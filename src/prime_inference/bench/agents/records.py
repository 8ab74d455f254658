"""What is known of one request."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["warmup", "profiling"]
Kind = Literal["warm", "subagent", "cold"]

OK = "ok"
UNFINISHED = "unfinished"  # the run ended before it did: neither success nor failure
CANCELLED = "cancelled"  # given up on purpose, by schedule: neither as well
OVERFLOW = "overflow"  # the prompt did not fit into the server's context


class Record(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times are seconds since the point began; token counts are the plan's or the server's.

    `intended` is when the schedule wanted it, `due` when it could be sent (what it waits for
    had ended), `sent` when it was. `first` and `last` are content, `end` the answer's last
    byte. `input_tokens` and `asked_tokens` are planned, `hit_tokens` what an unlimited cache
    would hold; `prompt_tokens`, `completion_tokens`, `cached_tokens`, `queue_seconds` are
    told by the server. `session`, `play` and `turn` say whose it is; `last_turn` that a
    tree's last turn it was. `wait` is the delay before it.
    """

    point: int
    phase: Phase
    kind: Kind
    session: str
    play: int
    turn: int
    intended: float
    due: float
    sent: float
    end: float
    outcome: str
    input_tokens: int
    asked_tokens: int
    hit_tokens: int | None = None
    wait: float = 0.0
    first: float | None = None
    last: float | None = None
    events: int = 0
    longest_gap: float = 0.0
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_seconds: float | None = None
    last_turn: bool = False
    truncated: bool = False
    calls: int = 0
    invalid_calls: int = 0
    prompt_mismatch: bool = False
    usage_doubtful: bool = False
    impossible_hit: bool = False
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome == OK

    @property
    def ended(self) -> bool:
        """Whether it counts as success or failure at all."""
        return self.outcome not in (UNFINISHED, CANCELLED)

    @property
    def usage_wrong(self) -> bool:
        """Whether what the server counts contradicts what was sent or what came."""
        return self.usage_doubtful or self.prompt_mismatch or self.impossible_hit

    @property
    def osl(self) -> int:
        """Output tokens: the server's count, else the events with content."""
        return self.events if self.completion_tokens is None else self.completion_tokens

    @property
    def isl(self) -> int:
        """Input tokens: the server's count, else the plan's."""
        return self.input_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def e2el(self) -> float:
        """From the send to the last content, as aiperf's request latency."""
        return (self.end if self.last is None else self.last) - self.sent

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def itl(self) -> float | None:
        """Mean time between output tokens after the first."""
        if self.first is None or self.last is None or self.osl < 2:
            return None
        return (self.last - self.first) / (self.osl - 1)

    @property
    def lag(self) -> float:
        """How late the generator itself was."""
        return self.sent - self.due
