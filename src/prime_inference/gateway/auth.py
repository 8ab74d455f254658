"""Who is calling."""

from __future__ import annotations

import time
from collections.abc import Callable

from prime_inference.accounts.directory import check_endpoint, check_peer
from prime_inference.domain import keys as api_keys
from prime_inference.domain.errors import AuthenticationFailed, InvalidRequest
from prime_inference.domain.keys import ApiKey
from prime_inference.ports.keys import KeyStore
from prime_inference.wire.http import Request

MAX_HEADER_BYTES = 256  # a key of ours has 71 characters

API_KEY = b"x-api-key"  # where clients of Anthropic's API put it

MISSING = "No API key was given. Send it as 'Authorization: Bearer <key>'."
WRONG = "The API key is not valid. Check that it is whole, and that it was made for this server."

ENDED = "The API key was revoked or has expired."


class Authenticator:
    """Finds the key that a request presents, in `Authorization` or else in `x-api-key`, and
    whom it bills.

    `billed_to` is asked where there are teams; without it `X-Prime-Team-ID` says nothing.
    """

    def __init__(
        self, keys: KeyStore, billed_to: Callable[[ApiKey, str], ApiKey] | None = None
    ) -> None:
        self._keys = keys
        self._billed_to = billed_to

    def authenticate(self, request: Request, endpoint: str = "", team: str | None = None) -> ApiKey:
        """The key, if it may be used for `endpoint` (one of `domain.keys.ENDPOINTS`; "": for
        what every key may do), as one of the `team` that the query or X-Prime-Team-ID names.

        Raises AuthenticationFailed, PermissionDenied, InvalidRequest; never repeats what was
        presented.
        """
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
        now = time.time()
        if key is None or not api_keys.verify(text, key, now):
            raise AuthenticationFailed(WRONG)
        if api_keys.ended(key, now):
            raise AuthenticationFailed(ENDED)
        if key.scope is not None:
            check_peer(key, request.client)
            if endpoint:
                check_endpoint(key, endpoint)
        if self._billed_to is None:
            return key
        header = request.header(b"x-prime-team-id")
        named = team if header is None else header.decode("latin-1")
        if team not in (None, named):
            raise InvalidRequest("'teamId' and X-Prime-Team-ID name two teams.", param="teamId")
        return key if named is None else self._billed_to(key, named)
