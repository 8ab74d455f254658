"""What has been seen of an endpoint lately, for `GET /models/{id}/endpoints`.

Uptime is successful over counted requests, as OpenRouter defines it: refusals that are
the client's own doing (400, 403, 413, 429) and clients that left do not count. Bounded:
one bucket a minute, one histogram a minute with a few dozen cells.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prime_inference.domain.tool_verdict import TOOL_ERRORS

DAY_MINUTES = 24 * 60
TOOL_CALL_MINUTES = 120  # of OpenRouter's public tool-call error rate
PERCENTILE_MINUTES = 30
PERCENTILES = (50, 75, 90, 99)
GROWTH = math.log(1.05)  # cells 5 % apart: a percentile is right within 2.5 %


@dataclass(slots=True)
class _Minute:
    minute: int
    successful: int = 0
    failed: int = 0
    first_token: Counter[int] = field(default_factory=Counter)
    throughput: Counter[int] = field(default_factory=Counter)
    with_calls: int = 0  # answers that finished with tool calls
    wrong_calls: Counter[str] = field(default_factory=Counter)  # of those, by kind of error
    with_wrong_calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of these, as the engine tells


class EndpointStatistics:
    """Times `now` are seconds on any clock that never goes back."""

    def __init__(self) -> None:
        self._minutes: deque[_Minute] = deque(maxlen=DAY_MINUTES)
        self.prompt_tokens = 0  # of whole answers, ever
        self.cached_tokens = 0

    def success(self, now: float, first_token: float, tokens_per_second: float) -> None:
        """An answer given whole; `first_token` in seconds."""
        minute = self._minute(now)
        minute.successful += 1
        if first_token > 0:
            minute.first_token[_cell(first_token)] += 1
        if tokens_per_second > 0:
            minute.throughput[_cell(tokens_per_second)] += 1

    def failure(self, now: float) -> None:
        """An attempt that the endpoint failed."""
        self._minute(now).failed += 1

    def tokens(self, now: float, prompt: int, cached: int) -> None:
        """A whole answer's prompt, and what of it the engine had in its cache."""
        minute = self._minute(now)
        minute.prompt_tokens += prompt
        minute.cached_tokens += cached
        self.prompt_tokens += prompt
        self.cached_tokens += cached

    def cached_share(self, now: float) -> float | None:
        """Cached over prompt tokens of the last 30 minutes. None where no engine told of any:
        those that do not tell look like those that had nothing."""
        recent = self._last(now)
        cached = sum(minute.cached_tokens for minute in recent)
        return cached / sum(minute.prompt_tokens for minute in recent) if cached else None

    def tool_calls(self, now: float, errors: Sequence[str]) -> None:
        """An answer that finished with tool calls, and the kinds of errors in them."""
        minute = self._minute(now)
        minute.with_calls += 1
        minute.wrong_calls.update(errors)
        minute.with_wrong_calls += bool(errors)

    def answers_with_calls(self, now: float) -> tuple[int, int]:
        """Answers of the last two hours that finished with tool calls; those with a wrong one."""
        recent = self._last(now, TOOL_CALL_MINUTES)
        return sum(each.with_calls for each in recent), sum(
            each.with_wrong_calls for each in recent
        )

    def tool_call_error_rate(
        self, now: float, minutes: int = TOOL_CALL_MINUTES
    ) -> dict[str, float] | None:
        """Percent of the answers that finished with tool calls of which one was wrong, in all and
        by kind of error; None without any such answer."""
        recent = self._last(now, minutes)
        counted = sum(minute.with_calls for minute in recent)
        if not counted:
            return None
        wrong = Counter({"total": sum(minute.with_wrong_calls for minute in recent)})
        for minute in recent:
            wrong.update(minute.wrong_calls)
        return {kind: 100.0 * wrong[kind] / counted for kind in ("total", *TOOL_ERRORS)}

    def uptime(self, now: float, minutes: int) -> float | None:
        """Percent of counted requests of the last `minutes` that succeeded; None without any."""
        recent = self._last(now, minutes)
        successful = sum(minute.successful for minute in recent)
        counted = successful + sum(minute.failed for minute in recent)
        return 100.0 * successful / counted if counted else None

    def first_token(self, now: float) -> dict[str, float] | None:
        """Seconds, as p50, p75, p90, p99 of the last 30 minutes."""
        return _percentiles([minute.first_token for minute in self._last(now)])

    def throughput(self, now: float) -> dict[str, float] | None:
        """Tokens per second, as p50, p75, p90, p99 of the last 30 minutes."""
        return _percentiles([minute.throughput for minute in self._last(now)])

    def _minute(self, now: float) -> _Minute:
        number = int(now // 60)
        if not self._minutes or self._minutes[-1].minute != number:
            self._forget_cells(number)
            self._minutes.append(_Minute(number))
        return self._minutes[-1]

    def _forget_cells(self, number: int) -> None:
        for minute in reversed(self._minutes):
            if minute.minute < number - PERCENTILE_MINUTES:
                if not minute.first_token and not minute.throughput:
                    break
                minute.first_token.clear()
                minute.throughput.clear()

    def _last(self, now: float, minutes: int = PERCENTILE_MINUTES) -> list[_Minute]:
        first = int(now // 60) - minutes + 1
        return [minute for minute in self._minutes if minute.minute >= first]


def _cell(value: float) -> int:
    return round(math.log(value) / GROWTH)


def _percentiles(histograms: Sequence[Counter[int]]) -> dict[str, float] | None:
    merged: Counter[int] = Counter()
    for histogram in histograms:
        merged.update(histogram)
    total = merged.total()
    if not total:
        return None
    cells = sorted(merged.items())
    return {f"p{percent}": _percentile(cells, total, percent) for percent in PERCENTILES}


def _percentile(cells: list[tuple[int, int]], total: int, percent: int) -> float:
    seen = accumulate(count for _, count in cells)
    rank = math.ceil(total * percent / 100)
    cell = next(cell for (cell, _), upto in zip(cells, seen, strict=True) if upto >= rank)
    return round(math.exp(cell * GROWTH), 4)
