"""`encrypted_content` of reasoning items: the reasoning, for clients that keep no items of ours.

It is packed, not encrypted: the same text stands in the item's `content`. What it gives
is the contract: a client that stores nothing here can hand the reasoning back.
"""

from __future__ import annotations

import base64
import binascii

from prime_inference.domain.errors import InvalidRequest

PREFIX = "pi1."


def sealed(text: str) -> str:
    return PREFIX + base64.urlsafe_b64encode(text.encode()).decode()


def unsealed(value: str, param: str) -> str:
    """Raises InvalidRequest for what was not made here."""
    try:
        if not value.startswith(PREFIX):
            raise ValueError("not ours")
        return base64.b64decode(value[len(PREFIX) :], altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise InvalidRequest(
            f"'{param}' was not made by this server. Leave the reasoning item out.", param=param
        ) from None
