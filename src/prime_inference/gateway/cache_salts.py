"""What keeps one tenant's prompts out of another's prefix cache.

An engine that shares cached prefixes between tenants tells each, by how fast it answers, what
the others have asked. Engines that know `cache_salt` share only under the same salt; ours is
an HMAC of the tenant, so nobody can choose or guess another's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

MOST_TENANTS = 100_000  # remembered; more begin to be computed anew, at 2 us each


class CacheSalts:
    """43 characters of base64url for each tenant, always the same under the same key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._salts: dict[str, str] = {}

    def of(self, tenant: str) -> str:
        salt = self._salts.get(tenant)
        if salt is None:
            if len(self._salts) >= MOST_TENANTS:
                self._salts.clear()
            digest = hmac.digest(self._key, tenant.encode(), hashlib.sha256)
            salt = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            self._salts[tenant] = salt
        return salt
