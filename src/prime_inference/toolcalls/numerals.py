"""Numbers between bounds, as grammar expressions over their decimal digits.

Numbers are written without leading zeros; those between bounds without an exponent. Digits
are limited, so that a model cannot write digits for ever and no reader overflows.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from prime_inference.toolcalls.grammar import EMPTY, group
from prime_inference.toolcalls.shapes import Number

# 31 digits reach beyond every 64-bit number, every float's mantissa and every timestamp in
# nanoseconds. Together with an exponent of at most 269 the value stays below 1.8e308, the
# largest a JSON reader must take.
MOST_DIGITS = 31

DIGITS = f"[0-9]{{0,{MOST_DIGITS - 1}}}"
INTEGER = f'"-"? ("0" | [1-9] {DIGITS})'
EXPONENT = '[eE] ("-" [0-9]{1,3} | "+"? ([0-9]{1,2} | "1" [0-9] [0-9] | "2" [0-6] [0-9]))'
NUMBER = f'"-"? ("0" | [1-9] {DIGITS}) ("." [0-9] {DIGITS})? ({EXPONENT})?'


@lru_cache(maxsize=1024)  # the same few bounds stand in most schemas
def bounded(number: Number) -> str | None:
    """An expression for the numbers within the bounds; None if there are none to write."""
    low = None if number.low is None else Decimal(repr(number.low))
    high = None if number.high is None else Decimal(repr(number.high))
    if low is not None and high is not None and low > high:
        return None
    write = _whole if number.integer else _decimal
    bodies: list[str] = []
    if low is None or low < 0:  # -high .. -low, mirrored
        nearest = Decimal(0) if high is None or high > 0 else -high
        opened = number.below_high if high is not None and high <= 0 else False
        farthest = None if low is None else -low
        bodies += [f'"-" {b}' for b in write(nearest, farthest, opened, number.above_low)]
    if high is None or high >= 0:
        nearest = Decimal(0) if low is None or low < 0 else low
        opened = number.above_low if low is not None and low >= 0 else False
        bodies += write(nearest, high, opened, number.below_high)
    return group(bodies) if bodies else None


def _whole(low: Decimal, high: Decimal | None, low_open: bool, high_open: bool) -> list[str]:
    assert not low_open
    assert not high_open, "bounds of integers are inclusive"
    return integers(int(low), None if high is None else int(high))


def integers(low: int, high: int | None) -> list[str]:
    """Expressions for low <= n <= high, with n written in at most `MOST_DIGITS` digits."""
    first, bodies = str(low), []
    top = 10**MOST_DIGITS - 1 if high is None else min(high, 10**MOST_DIGITS - 1)
    last = str(top)
    if low > top:
        return []
    if len(first) == len(last):
        return _same_length(first, last)
    bodies += _same_length(first, "9" * len(first))
    inner = len(last) - len(first) - 1
    if inner > 0:
        bodies.append(f"[1-9] [0-9]{{{len(first)},{len(last) - 2}}}")
    return bodies + _same_length("1" + "0" * (len(last) - 1), last)


def _same_length(low: str, high: str) -> list[str]:
    """Digit strings of one length between two; low may begin with zeros only if it is 0."""
    if not low:
        return [EMPTY]
    rest = len(low) - 1
    tail = f" [0-9]{{{rest}}}" if rest else ""
    if low[0] == high[0]:
        return [f'"{low[0]}" {group(_same_length(low[1:], high[1:]))}']
    start, end, bodies = int(low[0]), int(high[0]), []
    if low[1:].strip("0"):
        bodies.append(f'"{low[0]}" {group(_same_length(low[1:], "9" * rest))}')
        start += 1
    last = (
        [f'"{high[0]}" {group(_same_length("0" * rest, high[1:]))}'] if high[1:].strip("9") else []
    )
    end -= len(last)
    if start <= end:
        bodies.append(_digit(start, end) + tail)
    return bodies + last


def _digit(low: int, high: int) -> str:
    return f'"{low}"' if low == high else f"[{low}-{high}]"


def _decimal(low: Decimal, high: Decimal | None, low_open: bool, high_open: bool) -> list[str]:
    """Expressions for numbers with an optional fraction between two that are not negative."""
    first, from_digits = _split(low)
    lower = None if not from_digits and not low_open else (from_digits, low_open)
    if high is None:
        middle = [_with_fraction(group(integers(first + 1, None)), None, None)]
        return _one_integer(first, lower, None) + [body for body in middle if body]
    last, to_digits = _split(high)
    upper = (to_digits, high_open)
    if first == last:
        return _one_integer(first, lower, upper)
    bodies = _one_integer(first, lower, None)
    if first + 1 < last:
        between = integers(first + 1, last - 1)
        bodies.append(f"{group(between)} {_fraction(None, None)}")
    return bodies + _one_integer(last, None, upper)


Bound = tuple[str, bool]  # digits after the point without trailing zeros; whether excluded


def _split(value: Decimal) -> tuple[int, str]:
    whole, _, fraction = format(value, "f").partition(".")
    return int(whole), fraction.rstrip("0")


def _one_integer(whole: int, low: Bound | None, high: Bound | None) -> list[str]:
    body = _with_fraction(f'"{whole}"', low, high)
    return [body] if body else []


def _with_fraction(whole: str, low: Bound | None, high: Bound | None) -> str | None:
    fraction = _fraction(low, high)
    return None if fraction is None else f"{whole} {fraction}"


def _fraction(low: Bound | None, high: Bound | None) -> str | None:
    """The point and the digits after it, or nothing where zero is within the bounds."""
    digits = _digits(low, high, begun=False)
    zero = low is None and high != ("", True)
    if digits is None:
        return EMPTY if zero else None
    return f'("." {digits})?' if zero else f'"." {digits}'


def _digits(low: Bound | None, high: Bound | None, *, begun: bool) -> str | None:
    """One or more digits (none or more once `begun`) within bounds; None if there are none."""
    if low is None and high is None:
        return DIGITS if begun else f"[0-9] {DIGITS}"
    if high == ("", True):
        return None
    if high == ("", False):
        return None if low == ("", True) else ('"0"{0,9}' if begun else '"0"{1,9}')
    if low == ("", True) and high is None:
        return f'"0"{{0,9}} [1-9] {DIGITS}'
    bodies = []
    for start, end, next_low, next_high in _steps(low, high):
        rest = _digits(next_low, next_high, begun=True)
        if rest is not None:
            bodies.append(f"{_digit(start, end)} {rest}")
    if begun and low is None:
        bodies.append(EMPTY)  # stopping here is still below the upper bound
    return group(bodies) if bodies else None


def _steps(
    low: Bound | None, high: Bound | None
) -> list[tuple[int, int, Bound | None, Bound | None]]:
    """The next digit, in runs after which the same bounds hold."""
    runs: list[tuple[int, int, Bound | None, Bound | None]] = []
    for digit in range(10):
        after_low, after_high = _after(low, digit, above=True), _after(high, digit, above=False)
        if after_low == _OUT or after_high == _OUT:
            continue
        if runs and runs[-1][2:] == (after_low, after_high):
            runs[-1] = (runs[-1][0], digit, after_low, after_high)
        else:
            runs.append((digit, digit, after_low, after_high))
    return runs


_OUT: Bound = ("out", True)


def _after(bound: Bound | None, digit: int, *, above: bool) -> Bound | None:
    if bound is None:
        return None
    digits, opened = bound
    here = int(digits[0]) if digits else 0
    if digit != here:
        return None if (digit > here) == above else _OUT
    rest = digits[1:]
    return None if above and not rest and not opened else (rest, opened)
