"""Long-context questions with answers that a program can score, made from a seed.

Four tasks, after RULER (arXiv 2404.06654): one needle, several needles, tracking variables
through assignments, and summarising facts that are scattered over a long report. Every haystack
holds decoys of the same form, and an answer that names them loses what it wins: naming everything
scores 0, and so does repeating the prompt.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

Task = Literal["needle", "multi_needle", "variables", "summary"]
TASKS: Final[tuple[Task, ...]] = ("needle", "multi_needle", "variables", "summary")

CHARS_PER_TOKEN: Final = 4.2  # English prose with current tokenizers; lengths are approximate
DIGITS: Final = 7  # of a vault code or a variable's value
MULTI_NEEDLES: Final = 4
CHAIN: Final = 5  # assignments from the number to the last variable
DECOYS: Final = 4  # vault codes in the haystack that are not asked for
# Eight facts in prose take about 1500 characters; more than this is not an answer but a copy.
MAX_ANSWER_CHARS: Final = 4000
COPIED_CHARS: Final = 200  # of the prompt in a row; a planted sentence has at most 80
FACTS: Final = 8  # projects in a report that is to be summarised

_SUBJECTS = "the harbour|a courier|the archive|an engineer|the orchard|a lighthouse|the council"
_VERBS = "recorded|delayed|reopened|described|measured|postponed|inspected|repaired"
_OBJECTS = "the eastern bridge|a shipment of timber|the annual ledger|an old survey|the tide tables"
_TIMES = "before noon|in early spring|after the storm|during the strike|at the turn of the year"
_CITIES = "Aldermoor|Brackwater|Cinderford|Dunmarrow|Eastvale|Fenwick|Glasshaven|Hollowmere"
_PEOPLE = "Adeyemi|Brandt|Castellan|Dimitrov|Eriksen|Fontaine|Grabowski|Hashimoto"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of about `tokens` tokens and what a right answer names: numbers, variables, or
    a leader `with` a budget."""

    id: str
    task: Task
    tokens: int
    prompt: str
    expected: tuple[str, ...]

    def score(self, answer: str) -> float:
        """(right - wrong) / expected, at least 0; 0 for a copy of the prompt.

        Right and wrong are the numbers of seven digits, the variables, or the leaders beside a
        budget that the answer names. Digits may carry thousands separators.
        """
        if len(answer) > MAX_ANSWER_CHARS or _copied(self.prompt, answer):
            return 0.0
        if self.task == "summary":
            return self._facts(answer)
        text = answer.upper()
        if self.task == "variables":
            named = set(re.findall(r"VAR[A-Z]{2}(?![A-Z])", text))
        else:
            joined = re.sub(r"(?<=\d)[,. '\u00a0\u202f](?=\d{3}(?!\d))", "", text)
            named = {one for one in re.findall(r"\d+", joined) if len(one) == DIGITS}
        expected = set(self.expected)
        return max(0, len(named & expected) - len(named - expected)) / len(expected)

    def _facts(self, answer: str) -> float:
        """The score of a summary; the first mention says whether leaders or budgets lead."""
        budgets = dict(one.casefold().split(" with ") for one in self.expected)
        found = re.findall("|".join(budgets) + r"|(?<!\d)\d{3}(?!\d)", answer.casefold())
        pairs = set(itertools.pairwise(found))
        if found and found[0].isdigit():
            pairs = {(second, first) for first, second in pairs}
        named = {(one, number) for one, number in pairs if one in budgets and number.isdigit()}
        right = len(named & set(budgets.items()))
        return max(0, 2 * right - len(named)) / len(budgets)


def _copied(prompt: str, answer: str) -> bool:
    """Whether the answer holds a piece of the prompt of `COPIED_CHARS`, at any multiple of it:
    a copy of twice as many characters cannot escape."""
    return any(
        prompt[at : at + COPIED_CHARS] in answer
        for at in range(0, len(prompt) - COPIED_CHARS + 1, COPIED_CHARS)
    )


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
    if task in ("needle", "multi_needle"):
        count = 1 if task == "needle" else MULTI_NEEDLES
        cities = rng.sample(_CITIES.split("|"), count + DECOYS)
        numbers = [_number(rng) for _ in cities]
        planted = [
            (rng.random(), f"The vault code of {city} is {number}.")
            for city, number in zip(cities, numbers, strict=True)
        ]
        expected = numbers[:count]
        request = f"List the vault codes of {', '.join(cities[:count])}, and no others."
        if task == "needle":
            planted[0] = (depth, planted[0][1])
            request = f"What is the vault code of {cities[0]}? Answer with the number only."
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
        expected.append(f"{person} with {budget}")
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
    return str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
