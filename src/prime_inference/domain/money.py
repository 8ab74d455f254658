"""Money as whole numbers: amounts in nanodollars, rates in picodollars per token.

A 64-bit column holds 9.2 billion dollars in nanodollars. One picodollar per token is
exactly 0.000001 dollars per million tokens, finer than any price that is asked.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal, InvalidOperation

NANO = 1_000_000_000  # nanodollars in a dollar
PICO_PER_NANO = 1_000
BEYOND = 2**63  # what a signed 64-bit column does not hold
MOST_DIGITS = 18  # before or after the point, of what is looked at
DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")  # Decimal takes more
EXACT = Context(prec=100)  # no text that is given has more digits
RATE_PER_USD_PER_MTOK = 1_000_000  # picodollars a token, for a dollar per million tokens


def nanodollars(usd: str) -> int:
    """Whole nanodollars of decimal text in dollars. Raises ValueError."""
    return _scaled(usd, NANO, "a whole number of nanodollars (nine decimals)")


def rate(usd_per_mtok: str) -> int:
    """Picodollars per token of decimal text in dollars per million tokens. Raises ValueError."""
    number = _scaled(usd_per_mtok, RATE_PER_USD_PER_MTOK, "a price with at most six decimals")
    if number < 0:
        raise ValueError(f"{usd_per_mtok!r} is negative")
    return number


def usd_text(amount: int) -> str:
    """Exact dollars of an amount in nanodollars, with at least two decimals."""
    sign = "-" if amount < 0 else ""
    whole, rest = divmod(abs(amount), NANO)
    decimals = f"{rest:09d}".rstrip("0").ljust(2, "0")
    return f"{sign}{whole}.{decimals}"


def usd_number(amount: int) -> float:
    """Dollars as JSON numbers carry them; the nearest double."""
    return amount / NANO


def usd_per_mtok(picodollars: int) -> Decimal:
    """Dollars per million tokens of a rate, without trailing zeros."""
    return (Decimal(picodollars) / RATE_PER_USD_PER_MTOK).normalize()


def _scaled(text: str, scale: int, wanted: str) -> int:
    if not DECIMAL.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a decimal number")
    try:
        given = Decimal(text.strip())
    except InvalidOperation:  # an exponent beyond what a Decimal holds
        raise ValueError(f"{text!r} is not {wanted}") from None
    if given and abs(given.adjusted()) > MOST_DIGITS:  # before anything is made that long
        raise ValueError(f"{text!r} is not {wanted}")
    scaled = EXACT.multiply(given, scale)
    number = int(scaled)
    if number != scaled:
        raise ValueError(f"{text!r} is not {wanted}")
    if not -BEYOND <= number < BEYOND:
        raise ValueError(f"{text!r} is more than can be kept")
    return number
