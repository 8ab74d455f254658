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
from dataclasses import dataclass

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
PREFIX = "pi_live_"
KEY_ID_LENGTH = 12
SECRET_LENGTH = 43  # 62^43 > 2^256
CHECKSUM_LENGTH = 6  # 62^6 > 2^32
KEY_LENGTH = len(PREFIX) + KEY_ID_LENGTH + 1 + SECRET_LENGTH + 1 + CHECKSUM_LENGTH

PATTERN = re.compile(r"pi_live_([0-9A-Za-z]{12})_([0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
"""What a key looks like, for secret scanners."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is stored of a key. `digest` is SHA-256 of its whole text."""

    key_id: str
    tenant: str
    digest: bytes
    created_at: float  # seconds since the epoch
    name: str = ""
    last_four: str = ""


def create(tenant: str, *, name: str, created_at: float) -> tuple[str, ApiKey]:
    """A new key: its text, to be shown once, and its record."""
    key_id = _random(KEY_ID_LENGTH)
    body = f"{PREFIX}{key_id}_{_random(SECRET_LENGTH)}"
    text = f"{body}_{checksum(body)}"
    return text, ApiKey(key_id, tenant, digest(text), created_at, name, body[-4:])


def parse(text: str) -> str | None:
    """The key id in what may be a key's text; None if it has not the form of a key.

    Neither alphabet nor checksum are looked at, which are for finding keys offline: a
    wrong digit anywhere fails in `verify`.
    """
    if len(text) != KEY_LENGTH or not text.startswith(PREFIX):
        return None
    return text[len(PREFIX) : len(PREFIX) + KEY_ID_LENGTH]


def verify(text: str, key: ApiKey) -> bool:
    """Whether `text` is that key; takes the same time whatever differs."""
    return hmac.compare_digest(digest(text), key.digest)


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


def _random(length: int) -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(length))
