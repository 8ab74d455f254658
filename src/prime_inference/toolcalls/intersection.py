"""What fits two shapes at once: how `allOf`, and siblings of `$ref` and `anyOf`, are merged."""

from __future__ import annotations

from prime_inference.toolcalls.shapes import (
    ANY,
    NEVER,
    Anything,
    Array,
    Choice,
    Definitions,
    Kind,
    Membership,
    Number,
    Record,
    Shape,
    Steps,
    Text,
    TooManyKinds,
    Unfinished,
    kinds,
    whole,
)

# An anyOf of this many branches is already more than a model chooses between well. Products of
# several of them, which a hostile allOf can ask for, end here.
MOST_KINDS = 64

# References and kinds behind one shape: gathering this many takes 30 us.
MOST_GATHERED = 512

# Values of enums against shapes, in all of a schema: 20 ms. OpenAI allows 1,000 values.
MOST_COMPARED = 20_000

# Two recursive shapes intersect without end; schemas that people write nest a dozen levels.
DEEPEST = 50


class TooLarge(Exception):
    """The result would have more than `MOST_KINDS` kinds, or unroll a recursion without end."""


class Intersection:
    """Intersects shapes that share one set of definitions.

    `steps` bounds the work over its lifetime, in pairs of kinds: 5,000 take under 100 ms, and
    the schemas of real tools need tens. `compared` bounds how often values of enums are compared.
    """

    def __init__(
        self, definitions: Definitions, compared: Steps | None = None, steps: int = 5_000
    ) -> None:
        self._definitions = definitions
        self._left = steps
        self._compared = compared or Steps(MOST_COMPARED)
        self._depth = 0

    def of(self, a: Shape, b: Shape) -> Shape:
        """Raises `TooLarge`, and `Unfinished` where a definition is still being read."""
        if a is ANY or a == b:
            return b
        if b is ANY:
            return a
        if self._depth >= DEEPEST:
            raise TooLarge
        self._depth += 1
        try:  # the depth is that of the recursion, however it is left
            return self._product(a, b)
        finally:
            self._depth -= 1

    def _product(self, a: Shape, b: Shape) -> Shape:
        found: list[Kind] = []
        try:
            mine = kinds(a, self._definitions, MOST_GATHERED)
            others = kinds(b, self._definitions, MOST_GATHERED)
        except TooManyKinds as error:
            raise TooLarge from error
        for one in mine:
            for other in others:
                both = self._both(one, other)
                if both is not None and not _empty(both) and both not in found:
                    found.append(both)
                if len(found) > MOST_KINDS:
                    raise TooLarge
        return tuple(found)

    def _both(self, a: Kind, b: Kind) -> Kind | None:
        self._left -= 1
        if self._left < 0:
            raise TooLarge
        match a, b:
            case Anything(), _:
                return b
            case _, Anything():
                return a
            case Choice(), _:
                return self._filtered(a, b)
            case _, Choice():
                return self._filtered(b, a)
            case Text(), Text():
                return _texts(a, b)
            case Number(), Number():
                return _numbers(a, b)
            case Array(), Array():
                return self._arrays(a, b)
            case Record(), Record():
                return self._records(a, b)
            case _:
                return None

    def _filtered(self, choice: Choice, other: Kind) -> Choice | None:
        if not self._compared.take(len(choice.texts)):
            raise TooLarge
        membership = Membership(self._definitions, self._compared)
        pairs = zip(choice.texts, choice.values(), strict=True)
        kept = tuple(text for text, value in pairs if membership.fits(value, (other,)))
        return Choice(kept) if kept else None

    def _arrays(self, a: Array, b: Array) -> Array | None:
        length = max(len(a.prefix), len(b.prefix))
        prefix = tuple(self.of(_item(a, index), _item(b, index)) for index in range(length))
        shortest = max(a.shortest, b.shortest)
        longest = _least(a.longest, b.longest)
        if longest is not None and longest < shortest:
            return None
        items = self.of(a.items, b.items)
        return Array(items=items, prefix=prefix, shortest=shortest, longest=longest)

    def _records(self, a: Record, b: Record) -> Record:
        mine, others = dict(a.properties), dict(b.properties)
        names = list(mine) + [name for name in others if name not in mine]
        properties = tuple(
            (name, self.of(mine.get(name, a.free), others.get(name, b.free))) for name in names
        )
        return Record(
            properties=properties,
            required=a.required | b.required,
            free=self.of(a.free, b.free),
            free_names=a.free_names + tuple(n for n in b.free_names if n not in a.free_names),
            asked_for=a.asked_for or b.asked_for,
            fewest=max(a.fewest, b.fewest),
        )


def disjoint(a: Shape, b: Shape, definitions: Definitions, compared: Steps) -> bool:
    """Whether surely no value fits both; false also where that is too much work to tell."""
    try:
        both = Intersection(definitions, compared, steps=200).of(a, b)
    except (TooLarge, Unfinished):
        return False
    return not both


def _empty(kind: Kind) -> bool:
    if isinstance(kind, Record):
        return any(shape == NEVER for name, shape in kind.properties if name in kind.required)
    return False


def _item(array: Array, index: int) -> Shape:
    return array.prefix[index] if index < len(array.prefix) else array.items


def _texts(a: Text, b: Text) -> Text | None:
    shortest = max(a.shortest, b.shortest)
    longest = _least(a.longest, b.longest)
    if longest is not None and longest < shortest:
        return None
    patterns = a.patterns + tuple(one for one in b.patterns if one not in a.patterns)
    return Text(shortest=shortest, longest=longest, patterns=patterns)


def _numbers(a: Number, b: Number) -> Number | None:
    low, above = _tighter(a.low, a.above_low, b.low, b.above_low, upward=True)
    high, below = _tighter(a.high, a.below_high, b.high, b.below_high, upward=False)
    if low is not None and high is not None and (low > high or (low == high and (above or below))):
        return None
    both = Number(low=low, high=high, above_low=above, below_high=below)
    return whole(both) if a.integer or b.integer else both


def _tighter(
    a: float | None, a_open: bool, b: float | None, b_open: bool, *, upward: bool
) -> tuple[float | None, bool]:
    if a is None or b is None:
        return (b, b_open) if a is None else (a, a_open)
    if a == b:
        return a, a_open or b_open
    return (a, a_open) if (a > b) == upward else (b, b_open)


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)
