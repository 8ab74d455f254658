"""Long-context questions with answers that a program can score, made from a seed.

Four tasks, after RULER (arXiv 2404.06654): one needle, several needles, tracking variables
through assignments, and summarising facts that are scattered over a long report. A question's
score is the share of expected strings that its answer holds.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Task = Literal["needle", "multi_needle", "variables", "summary"]
TASKS: Final[tuple[Task, ...]] = ("needle", "multi_needle", "variables", "summary")

CHARS_PER_TOKEN: Final = 4.2  # English prose with current tokenizers; lengths are approximate
MULTI_NEEDLES: Final = 4
CHAIN: Final = 5  # assignments from the number to the last variable
FACTS: Final = 8  # projects in a report that is to be summarised

_SUBJECTS = "the harbour|a courier|the archive|an engineer|the orchard|a lighthouse|the council"
_VERBS = "recorded|delayed|reopened|described|measured|postponed|inspected|repaired"
_OBJECTS = "the eastern bridge|a shipment of timber|the annual ledger|an old survey|the tide tables"
_TIMES = "before noon|in early spring|after the storm|during the strike|at the turn of the year"
_CITIES = "Aldermoor|Brackwater|Cinderford|Dunmarrow|Eastvale|Fenwick|Glasshaven|Hollowmere"
_PEOPLE = "Adeyemi|Brandt|Castellan|Dimitrov|Eriksen|Fontaine|Grabowski|Hashimoto"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of about `tokens` tokens and the strings a right answer holds."""

    id: str
    task: Task
    tokens: int
    prompt: str
    expected: tuple[str, ...]

    def score(self, answer: str) -> float:
        """The share of expected strings in `answer`; digits may carry thousands separators."""
        plain = answer.replace(",", "").casefold()
        return sum(one.casefold() in plain for one in self.expected) / len(self.expected)


def make_questions(
    seed: int, lengths: Sequence[int], per_cell: int, tasks: Sequence[Task] = TASKS
) -> Iterator[Question]:
    """`per_cell` questions of each task and length; needle depths are spread evenly."""
    for task in tasks:
        for tokens in lengths:
            for number in range(per_cell):
                name = f"{task}-{tokens}-{number}"
                digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                rng = random.Random(digest)  # noqa: S311  # a seed is the point
                yield _make(rng, name, task, tokens, (number + 0.5) / per_cell)


def _make(rng: random.Random, name: str, task: Task, tokens: int, depth: float) -> Question:
    if task == "needle":
        city, number = rng.choice(_CITIES.split("|")), _number(rng)
        planted = [(depth, f"The vault code of {city} is {number}.")]
        request = f"What is the vault code of {city}? Answer with the number only."
        expected = [number]
    elif task == "multi_needle":
        cities = rng.sample(_CITIES.split("|"), MULTI_NEEDLES)
        expected = [_number(rng) for _ in cities]
        planted = [
            (rng.random(), f"The vault code of {city} is {number}.")
            for city, number in zip(cities, expected, strict=True)
        ]
        request = f"List the vault codes of {', '.join(cities)}."
    elif task == "variables":
        planted, request, expected = _variables(rng)
    else:
        planted, request, expected = _summary(rng)
    text = _filled(rng, int(tokens * CHARS_PER_TOKEN) - len(request), planted)
    return Question(name, task, tokens, f"{text}\n\n{request}", tuple(expected))


def _variables(rng: random.Random) -> tuple[list[tuple[float, str]], str, list[str]]:
    names = rng.sample([f"VAR{a}{b}" for a in "ABCDEFGH" for b in "KLMNPQRS"], 2 * CHAIN)
    wanted, decoys = names[:CHAIN], names[CHAIN:]
    number, other = _number(rng), _number(rng)
    planted = []
    for chain, value in ((wanted, number), (decoys, other)):
        places = sorted(rng.random() for _ in chain)
        sources = [value, *chain]
        planted += [
            (place, f"Assign {name} = {source}.")
            for place, name, source in zip(places, chain, sources, strict=False)
        ]
    request = f"Which variables have the value {number}, directly or through others? List them."
    return planted, request, wanted


def _summary(rng: random.Random) -> tuple[list[tuple[float, str]], str, list[str]]:
    planted, expected = [], []
    places = _CITIES.split("|")[:FACTS]
    for city, person in zip(places, rng.sample(_PEOPLE.split("|"), FACTS), strict=True):
        budget = str(rng.randrange(100, 1000))
        planted.append(
            (rng.random(), f"The {city} works are led by {person} with {budget} million crowns.")
        )
        expected += [person, budget]
    request = (
        "Summarise the report above: for each works project, name its place, its leader and its "
        "budget in million crowns."
    )
    return planted, request, expected


def _filled(rng: random.Random, chars: int, planted: list[tuple[float, str]]) -> str:
    """Prose of `chars` characters with each planted sentence at its depth in [0, 1)."""
    sentences: list[str] = []
    room = chars - sum(len(text) + 1 for _, text in planted)
    while room > 0:
        parts = (rng.choice(words.split("|")) for words in (_SUBJECTS, _VERBS, _OBJECTS, _TIMES))
        sentence = " ".join(parts).capitalize() + "."
        sentences.append(sentence)
        room -= len(sentence) + 1
    count = len(sentences)
    for depth, text in sorted(planted, key=lambda one: one[0], reverse=True):
        sentences.insert(int(depth * count), text)
    return " ".join(sentences)


def _number(rng: random.Random) -> str:
    return str(rng.randrange(1_000_000, 10_000_000))
