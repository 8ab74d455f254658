"""API keys: `pi_live_<key id>_<secret>_<checksum>`.

The prefix lets secret scanners find a leaked key, underscores let a double click select
all of it, and the checksum (CRC-32 in base 62, after GitHub's token format of 2021) lets
both tell a real key from a look-alike without asking us. The secret has 256 bits, so that
one SHA-256 is enough to store it: there is nothing to guess and nothing to stretch.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import zlib
from dataclasses import dataclass, replace

from prime_inference.domain.errors import InvalidRequest

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX = "pi_live_"
KEY_ID_LENGTH = 12
SECRET_LENGTH = 43  # 62^43 > 2^256
CHECKSUM_LENGTH = 6  # 62^6 > 2^32
KEY_LENGTH = len(PREFIX) + KEY_ID_LENGTH + 1 + SECRET_LENGTH + 1 + CHECKSUM_LENGTH

PATTERN = re.compile(r"pi_live_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
"""What a key looks like, for secret scanners."""


ENDPOINTS = frozenset({"chat/completions", "completions", "embeddings", "responses", "messages"})
"""What a key may be limited to: paths of the API, with all that lies under them. The catalogue,
and what a key may ask about itself and its account, are open to every key."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a key may be used for; an empty set allows everything."""

    models: frozenset[str] = frozenset()
    routes: frozenset[str] = frozenset()  # of ENDPOINTS
    networks: frozenset[str] = frozenset()  # of the peer, in CIDR notation


MOST_EARLIER = 8
"""Earlier texts of a key that still work: a day's overlap and a rotation every three hours.
A request with a wrong text is compared with each, at 0.2 us."""


@dataclass(frozen=True, slots=True)
class EarlierText:
    """A text that a rotation has replaced; it works until its own end."""

    digest: bytes
    until: float
    last_four: str = ""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is stored of a key. `digest` is SHA-256 of its whole text; times as `created_at`.

    A rotated key keeps its id; `earlier` are its texts from before.
    """

    key_id: str
    tenant: str
    digest: bytes
    created_at: float  # seconds since the epoch
    name: str = ""
    last_four: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    earlier: tuple[EarlierText, ...] = ()
    scope: Scope | None = None


def create(tenant: str, *, name: str, created_at: float) -> tuple[str, ApiKey]:
    """A new key: its text, to be shown once, and its record."""
    key_id = _random(KEY_ID_LENGTH)
    text, last_four = _text(key_id)
    return text, ApiKey(key_id, tenant, digest(text), created_at, name, last_four)


def rotate(key: ApiKey, *, now: float, overlap_seconds: float) -> tuple[str, ApiKey]:
    """A new text under the same id; the present one is good for the overlap, and those before
    it until their own ends. Without an overlap all of them end at once, as after a leak.

    Raises InvalidRequest for more than MOST_EARLIER.
    """
    earlier: tuple[EarlierText, ...] = ()
    if overlap_seconds > 0:
        earlier = tuple(each for each in key.earlier if each.until > now)
        if len(earlier) == MOST_EARLIER:
            raise _too_many(earlier, now)
        earlier += (EarlierText(key.digest, now + overlap_seconds, key.last_four),)
    text, last_four = _text(key.key_id)
    return text, replace(key, digest=digest(text), last_four=last_four, earlier=earlier)


def parse(text: str) -> str | None:
    """The key id in what may be a key's text; None if it has not the form of a key.

    Neither alphabet nor checksum are looked at, which are for finding keys offline: a
    wrong digit anywhere fails in `verify`.
    """
    if len(text) != KEY_LENGTH or not text.startswith(PREFIX):
        return None
    return text[len(PREFIX) : len(PREFIX) + KEY_ID_LENGTH]


def verify(text: str, key: ApiKey, now: float = 0.0) -> bool:
    """Whether `text` is that key; takes the same time whatever differs."""
    found = digest(text)
    if hmac.compare_digest(found, key.digest):
        return True
    matches = [hmac.compare_digest(found, each.digest) and now < each.until for each in key.earlier]
    return any(matches)


def ended(key: ApiKey, now: float) -> bool:
    """Whether it was revoked or its time is over."""
    return key.revoked_at is not None or (key.expires_at is not None and now >= key.expires_at)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def checksum(body: str) -> str:
    """CRC-32 of `body` in base 62, six digits."""
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        value, rest = divmod(value, len(ALPHABET))
        digits.append(ALPHABET[rest])
    return "".join(reversed(digits))


def _too_many(earlier: tuple[EarlierText, ...], now: float) -> InvalidRequest:
    first = min(each.until for each in earlier) - now
    return InvalidRequest(
        f"{len(earlier)} earlier texts of this key still work, and the first of them ends in"
        f" {first:.0f} s. Rotate then, or without an overlap, which ends them all at once.",
        param="overlap_seconds",
    )


def _text(key_id: str) -> tuple[str, str]:
    """A key's whole text with a new secret, and the secret's last four characters."""
    body = f"{PREFIX}{key_id}_{_random(SECRET_LENGTH)}"
    return f"{body}_{checksum(body)}", body[-4:]


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
