"""How many tokens an answer took, and how fast they came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prime_inference.cli.replies import Usage

Clock = Callable[[], float]
"""Seconds since some fixed time."""


@dataclass(slots=True)
class Stopwatch:
    """When a request began, and when its first and last pieces came. Times in seconds."""

    clock: Clock
    started: float = field(init=False)
    first: float | None = None
    last: float | None = None

    def __post_init__(self) -> None:
        self.started = self.clock()

    def piece(self) -> None:
        """A piece of the answer came."""
        self.last = self.clock()
        if self.first is None:
            self.first = self.last


@dataclass(frozen=True, slots=True)
class Statistics:
    """What `--stats` prints. Times in seconds; None is what cannot be known.

    `tokens_per_second` is the pace of decoding: the tokens after the first over the time
    after the first. For an answer that came whole there is no first token, and the pace is
    that of the whole request, prompt and network included.
    """

    usage: Usage | None
    finish_reason: str | None
    total: float
    first_token: float | None
    tokens_per_second: float | None

    def as_json(self) -> dict[str, object]:
        """One object under `stats`."""
        usage = self.usage
        return {
            "stats": {
                "prompt_tokens": usage.prompt_tokens if usage else None,
                "cached_tokens": usage.cached_tokens if usage else None,
                "completion_tokens": usage.completion_tokens if usage else None,
                "reasoning_tokens": usage.reasoning_tokens if usage else None,
                "finish_reason": self.finish_reason,
                "time_to_first_token": _rounded(self.first_token),
                "total_time": _rounded(self.total),
                "tokens_per_second": _rounded(self.tokens_per_second),
            }
        }

    def as_text(self) -> str:
        """One line."""
        parts = [self._tokens()]
        if self.first_token is not None:
            parts.append(f"first token after {self.first_token:.2f} s")
        parts.append(f"total {self.total:.2f} s")
        if self.tokens_per_second is not None:
            parts.append(f"{self.tokens_per_second:.1f} tokens/s")
        if self.finish_reason not in (None, "stop"):
            parts.append(f"finish reason: {self.finish_reason}")
        return " · ".join(parts)

    def _tokens(self) -> str:
        if self.usage is None:
            return "the server reported no usage"
        cached = f" ({self.usage.cached_tokens} cached)" if self.usage.cached_tokens else ""
        reasoning = (
            f" ({self.usage.reasoning_tokens} reasoning)" if self.usage.reasoning_tokens else ""
        )
        return (
            f"{self.usage.prompt_tokens} prompt tokens{cached}"
            f" · {self.usage.completion_tokens} completion tokens{reasoning}"
        )


def streamed(watch: Stopwatch, usage: Usage | None, finish_reason: str | None) -> Statistics:
    """The statistics of an answer that came in pieces."""
    pace = None
    if usage is not None and watch.first is not None and watch.last is not None:
        pace = _pace(usage.completion_tokens - 1, watch.last - watch.first)
    first = None if watch.first is None else watch.first - watch.started
    return Statistics(usage, finish_reason, watch.clock() - watch.started, first, pace)


def whole(watch: Stopwatch, usage: Usage | None, finish_reason: str | None) -> Statistics:
    """The statistics of an answer that came at once."""
    total = watch.clock() - watch.started
    pace = None if usage is None else _pace(usage.completion_tokens, total)
    return Statistics(usage, finish_reason, total, None, pace)


def _pace(tokens: int, seconds: float) -> float | None:
    return tokens / seconds if tokens > 0 and seconds > 0 else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)  # 0.1 ms: finer is noise
