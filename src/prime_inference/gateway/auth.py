"""Who is calling."""

from __future__ import annotations

from prime_inference.domain import keys as api_keys
from prime_inference.domain.errors import AuthenticationFailed
from prime_inference.domain.keys import ApiKey
from prime_inference.ports.keys import KeyStore
from prime_inference.wire.http import Request

MAX_HEADER_BYTES = 256  # a key of ours has 71 characters

API_KEY = b"x-api-key"  # where clients of Anthropic's API put it

MISSING = "No API key was given. Send it as 'Authorization: Bearer <key>'."
WRONG = "The API key is not valid. Check that it is whole, and that it was made for this server."


class Authenticator:
    """Finds the key that a request presents, in `Authorization` or else in `x-api-key`."""

    def __init__(self, keys: KeyStore) -> None:
        self._keys = keys

    def authenticate(self, request: Request) -> ApiKey:
        """Raises AuthenticationFailed; its message never repeats what was presented."""
        value = request.header(b"authorization")
        if value is None:
            text = (request.header(API_KEY) or b"")[:MAX_HEADER_BYTES].decode("latin-1").strip()
            scheme = "bearer"
        else:
            scheme, _, token = value[:MAX_HEADER_BYTES].decode("latin-1").partition(" ")
            text = token.strip()
        if not text or scheme.lower() != "bearer":
            raise AuthenticationFailed(MISSING)
        key_id = api_keys.parse(text)
        key = self._keys.find(key_id) if key_id else None
        if key is None or not api_keys.verify(text, key):
            raise AuthenticationFailed(WRONG)
        return key
