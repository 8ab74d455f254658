"""A deployment of a simulation: answers, fails, hangs, is slow."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

from prime_inference.domain.models import Deployment


class Mood(enum.Enum):
    WELL = enum.auto()
    DOWN = enum.auto()  # refuses connections
    HANGING = enum.auto()  # accepts and says nothing
    SLOW = enum.auto()  # five times slower than usual: not dead
    FLAKY = enum.auto()  # every other attempt fails
    BUSY = enum.auto()  # 429


class End(enum.Enum):
    ANSWERED = enum.auto()
    FAILED = enum.auto()
    REFUSED = enum.auto()


FIRST_TOKEN_LIMIT_S = 2.0
LONGEST_ANSWER = 2.0  # times the mean: a deployment's only slot must be free for probes in peace


@dataclass(frozen=True, slots=True)
class Course:
    """What will happen to an attempt."""

    first_token_s: float | None
    end_s: float
    end: End


class Engine:
    def __init__(self, spec: Deployment) -> None:
        self.spec = spec
        self.mood = Mood.WELL

    def course(self, random: Random, mean_s: float) -> Course:
        """Decide an attempt that begins now."""
        if self.mood is Mood.DOWN:
            return Course(None, 0.001, End.FAILED)
        if self.mood is Mood.HANGING:
            return Course(None, FIRST_TOKEN_LIMIT_S, End.FAILED)
        if self.mood is Mood.BUSY:
            return Course(None, 0.002, End.REFUSED)
        pace = 5.0 if self.mood is Mood.SLOW else 1.0
        first_token = pace * random.uniform(0.05, 0.2)
        end = first_token + pace * min(random.expovariate(1 / mean_s), LONGEST_ANSWER * mean_s)
        if self.mood is Mood.FLAKY and random.random() < 0.5:
            return Course(first_token, end / 2, End.FAILED)
        return Course(first_token, end, End.ANSWERED)
